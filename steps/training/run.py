"""A training run: from a model folder and examples to a model folder and its log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.training.backends.build import build_backend
from steps.training.batches import total_steps
from steps.training.checkpoints import Checkpoints
from steps.training.config import ActivationCheckpointing, Attention, TrainConfig
from steps.training.examples import TokenGroup
from steps.training.held_out import best_step
from steps.training.loop import AtStart, train
from steps.training.lora import add_adapter, merge_adapter, save_adapter
from steps.training.metrics import first_and_final, summarise, write_metrics
from steps.training.models import load_model, save_model
from steps.training.objectives import Objective
from steps.training.parity import choose_attention
from steps.training.positions import beyond_training
from steps.training.recomputing import checkpoint_activations
from steps.training.reference import Reference, check_start
from steps.training.scored_by import ScoredBy
from steps.training.workplace import Workplace

if TYPE_CHECKING:
    from peft import PeftModel

Records = Iterable[Mapping[str, Any]]


class Run:
    """A model made ready to be trained on `groups` as `config` says.

    Args:
        folder: where `model` was loaded from.
        dropout: the model's own dropout acts.
        shown_by: reference logps of `groups` that `check_start` is going to compare with: where
            they show that the model can be packed, that is not tried again.
    """

    def __init__(
        self,
        folder: Path,
        model: PreTrainedModel,
        groups: Sequence[TokenGroup],
        config: TrainConfig,
        place: Workplace,
        *,
        dropout: bool = False,
        shown_by: Reference | None = None,
    ) -> None:
        self._folder = folder
        self._config = config
        self._place = place
        self._model, self._adapted = model, _adapted(model, config)
        self._backend = build_backend(
            model,
            config.tokens_per_forward,
            place.ranks,
            config.optimizer,
            config.master_weights,
            dropout,
        )
        packed = ScoredBy.of(model, config.dtype, Attention.packed, config.tokens_per_forward)
        first = place.ranks.is_first  # the others need not read all of the model for it
        (is_known,) = place.ranks.any(
            first and shown_by is not None and shown_by.shows_packing(folder, packed)
        )
        packing = choose_attention(self._backend, groups, config.attention, place.ranks, is_known)
        self._scored_by = replace(packed, attention=packing.attention)
        how = config.activation_checkpointing
        if how is ActivationCheckpointing.full or packing.attention is Attention.packed:
            checkpoint_activations(model, how)
        told = (packing.notice, beyond_training(model, groups), _cold(config, len(groups)))
        self._notices = [notice for notice in told if notice]

    def require_comparable(self, reference: Reference) -> None:
        """Raises ValueError if the policy's logps must not be compared with the reference's."""
        self._scored_by.require_comparable(reference.scored_by, reference.folder)

    def start_check(self, reference: Reference) -> AtStart:
        """`reference.check_start`, of the first batch."""
        return lambda groups, logps: check_start(
            logps, groups, self._folder, self._scored_by, reference
        )

    def train(
        self,
        objective: Objective,
        held_out: Objective | None,
        *,
        at_start: AtStart | None = None,
        title: str | None = None,
    ) -> dict[str, Any]:
        """Trains, writes the model folder and its metrics.jsonl; returns `metrics.summarise`, with
        `notices` of what a person should know.

        Checkpoints are in scratch; a run that finds some there goes on from the latest. With a
        `title` there is a summary.md too.
        """
        config, place = self._config, self._place
        if config.eval_every_steps is not None and held_out is None:
            raise ValueError("eval_every_steps is set, but there are no held-out examples")
        checkpoints = Checkpoints(place.scratch / "checkpoints", config.keep_last, place.ranks)
        try:
            log = train(
                self._backend,
                objective,
                config,
                checkpoints,
                place.on_progress,
                held_out,
                at_start,
                place.stopping,
                place.ranks,
            )
            weights = {} if place.ranks.count == 1 else self._backend.get_weights().result()
        finally:
            self._backend.close()
        best = best_step(log, config)
        summary = summarise(log) | ({} if best is None else {"best_step": best})
        summary |= {"notices": self._notices} if self._notices else {}
        if place.ranks.is_first:
            self._save(weights, place.output)
            write_metrics(place.output / "metrics.jsonl", log)
            if title is not None:
                (place.output / "summary.md").write_text(first_and_final(title, summary))
        return summary

    def _save(self, weights: Mapping[str, Tensor], output: Path) -> None:
        """Writes the model folder; with adapters, what they come to, and themselves beside it."""
        model, adapted = self._model, self._adapted
        if self._place.ranks.count > 1:  # of which this rank has a share
            model = load_model(self._folder, self._config.dtype, on_host=True)
            adapted = _adapted(model, self._config)
            with torch.no_grad():
                for name, value in weights.items():
                    model.get_parameter(name).copy_(value)
        if adapted is not None:
            save_adapter(adapted, output / "adapter")
            model = merge_adapter(adapted)
        save_model(model, output, tokenizer_from=self._folder)


def _cold(config: TrainConfig, examples: int) -> str | None:
    """Says so if a run is over before its rate is warm."""
    steps = total_steps(examples, config.batch_size, config.epochs, config.max_steps)
    warmup, rate = config.optimizer.warmup_steps, config.optimizer.learning_rate
    if steps > warmup:
        return None
    return f"the rate never reaches {rate:g}: the run has {steps} steps, and warmup_steps={warmup}"


def _adapted(model: PreTrainedModel, config: TrainConfig) -> "PeftModel | None":
    return None if config.lora is None else add_adapter(model, config.lora, config.seed)
