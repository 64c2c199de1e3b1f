"""A training run: from a model folder and examples to a model folder and its log."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from steps.training.backends.torch_backend import TorchBackend
from steps.training.batches import batch_indices
from steps.training.checkpoints import Checkpoints
from steps.training.config import TrainConfig
from steps.training.examples import TokenGroup
from steps.training.held_out import best_step
from steps.training.loop import train
from steps.training.lora import add_adapter, merge_adapter
from steps.training.metrics import OnProgress, summarise, write_metrics
from steps.training.models import checkpoint_activations, save_model
from steps.training.objectives import Objective
from steps.training.parity import check_packing
from steps.training.reference import Reference, check_start, read_reference
from steps.training.scored_by import ScoredBy

Records = Iterable[Mapping[str, Any]]

_CHECKED_AT_START = 8


class Run:
    """A model made ready to be trained on `groups` as `config` says.

    Args:
        folder: where `model` was loaded from.
        dropout: the model's own dropout acts.
    """

    def __init__(
        self,
        folder: Path,
        model: PreTrainedModel,
        groups: Sequence[TokenGroup],
        config: TrainConfig,
        dropout: bool = False,
    ) -> None:
        self._folder = folder
        self._model = model
        self._groups = groups
        self._config = config
        packing = check_packing(model, groups, config.attention)
        if packing.notice:
            warnings.warn(packing.notice, stacklevel=3)
        self._scored_by = ScoredBy.of(model, packing.attention, config.tokens_per_forward)
        self._adapted = None
        if config.lora is not None:
            self._adapted = add_adapter(model, config.lora, config.seed)
        if config.activation_checkpointing:
            checkpoint_activations(model)
        self._backend = TorchBackend(
            model, config.tokens_per_forward, config.optimizer, config.master_weights, dropout
        )

    def reference(self, folder: Path) -> Reference:
        """The reference logps in `folder`; raises ValueError if they were computed in a way that
        the policy's must not be compared with."""
        reference = read_reference(folder)
        self._scored_by.require_comparable(reference.scored_by, folder)
        return reference

    def start_check(self, reference: Reference) -> Callable[[], None]:
        """`reference.check_start` on the first examples that are going to be trained on."""
        config = self._config
        first = batch_indices(len(self._groups), config.batch_size, step=0, seed=config.seed)
        groups = [self._groups[i] for i in first[:_CHECKED_AT_START]]
        return lambda: check_start(self._backend, self._scored_by, self._folder, groups, reference)

    def train(
        self,
        objective: Objective,
        held_out: Objective | None,
        *,
        output: Path,
        scratch: Path,
        on_progress: OnProgress,
        at_start: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Trains, writes the model folder and its metrics.jsonl; returns `metrics.summarise`.

        Checkpoints are in `scratch`; a run that finds some there goes on from the latest.
        """
        config = self._config
        if config.eval_every_steps is not None and held_out is None:
            raise ValueError("eval_every_steps is set, but there are no held-out examples")
        checkpoints = Checkpoints(scratch / "checkpoints", config.keep_last)
        try:
            log = train(
                self._backend, objective, config, checkpoints, on_progress, held_out, at_start
            )
        finally:
            self._backend.close()
        model = self._model if self._adapted is None else merge_adapter(self._adapted)
        save_model(model, output, tokenizer_from=self._folder)
        write_metrics(output / "metrics.jsonl", log)
        best = best_step(log, config)
        return summarise(log) | ({} if best is None else {"best_step": best})
