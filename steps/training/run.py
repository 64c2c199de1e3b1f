"""A training run: from a model folder and examples to a model folder and its log."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steps.data.rows.jsonl import write_json_lines
from steps.models.config import Dtype
from steps.models.workplace import Workplace
from steps.scoring.examples import TokenGroup
from steps.scoring.reference import Reference
from steps.scoring.scored_by import ScoredBy, model_digest
from steps.shared.execution_detail import execution_detail
from steps.training.checkpoints import Checkpoints
from steps.training.config import TrainConfig
from steps.training.held_out import best_step, require_metric
from steps.training.loop import AtStart, train
from steps.training.metrics import StepMetrics, first_and_final, summarise
from steps.training.objectives import Objective
from steps.training.policy import Policy
from steps.training.schedule import batch_indices, total_steps, warmup_steps

Records = Iterable[Mapping[str, Any]]

START_TOLERANCE = {Dtype.float64: 1e-9, Dtype.float32: 1e-4, Dtype.bfloat16: 2e-2}
"""The largest difference, in nats per scored token, between logps that should be equal, for a
response of 400 tokens or more. It allows for the rounding of other kernels and packs. Rounding
errors have both signs, so for n < 400 tokens the mean may differ by √(400/n) times as much."""

_OF_ANOTHER_BACKEND = 1e-5
"""The same in float64 between two backends: transformers' norms compute in float32."""

_FAR = 1.0
"""Nats a token. Runs of `experiments/dpo_arithmetic.py` whose answers stayed right fell by at most
0.2; with a fall of 2, exact match went from 0.68 to 0.06, with one of 6 to 0. One of 0.4, with
which it went to 0.47, is not told."""

_ENOUGH = 32
"""How many chosen responses a mean is of, at the start and at the end of a run."""


class Run:
    """A policy that is ready for training on `groups` with `config`.

    Args:
        folder: the folder from which the policy was loaded.
        others, shown_by: see `Policy.make_ready`.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        groups: Sequence[TokenGroup],
        config: TrainConfig,
        place: Workplace,
        *,
        others: Sequence[TokenGroup] = (),
        shown_by: Sequence[Reference] = (),
    ) -> None:
        self._folder = folder
        self._config = config
        self._place = place
        self._policy = policy
        self._scored_by, notices = policy.make_ready(groups, others, shown_by)
        self._notices = [*notices, *filter(None, [_cold(config, len(groups))])]

    def require_comparable(self, reference: Reference) -> None:
        """Raise ValueError if the policy's logps are not comparable with the reference's."""
        self._scored_by.require_comparable(reference.scored_by, reference.folder)

    def start_check(self, reference: Reference) -> AtStart:
        """A function that calls `check_start` for the first batch."""
        return lambda groups, logps: check_start(
            logps, groups, self._folder, self._scored_by, reference
        )

    def train(
        self,
        objective: Objective,
        held_out: Objective | None,
        *,
        at_start: AtStart | None = None,
        loss: str | None = None,
    ) -> dict[str, Any]:
        """Train, and write the model folder and its metrics.jsonl. Returns `metrics.summarise`,
        with `best_step` and the value of `keep_best` there if the best step is kept, and with
        `notices` for the user if there are any.

        Checkpoints are in scratch, and the run resumes from the latest one. With the name of the
        `loss`, this also writes summary.md.
        """
        config, place, trainer = self._config, self._place, self._policy.trainer
        if config.eval_every_steps is not None and held_out is None:
            raise ValueError("eval_every_steps is set, but there are no held-out examples")
        if config.eval_every_steps is not None and held_out is not None:
            require_metric(held_out, config)
        checkpoints = Checkpoints(place.scratch / "checkpoints", config.keep_last, place.ranks)
        try:
            log = train(
                trainer,
                objective,
                config,
                checkpoints,
                place.on_progress,
                held_out,
                at_start,
                place.stopping,
                place.ranks,
                place.output if place.ranks.is_first else None,
            )
            trained = self._policy.trained()
            every = config.snapshot_every_steps or len(log)
            if steps := range(every, len(log), every):
                trained = trainer.get_weights().result()
            for step in steps:  # the weights of the last step are the model's
                trainer.load_weights(checkpoints.snapshot(step)).result()
                weights = trainer.get_weights().result()
                if place.ranks.is_first:
                    self._policy.save(weights, place.output / f"step-{step}", place.base)
        finally:
            trainer.close()
        best = best_step(log, config)
        summary = summarise(log)
        if best is not None and config.keep_best is not None:
            summary |= {"best_step": best, config.keep_best: log[best - 1][config.keep_best]}
        kept = log[:best]
        found = [_untaught(log), _fallen(kept, objective.groups, config)]
        notices = [*self._notices, *filter(None, found)]
        summary |= {"notices": notices} if notices else {}
        if config.backend is not None and config.backend.is_recorded:
            summary |= {"recorded": True}
        if place.ranks.is_first:
            self._policy.save(trained, place.output, place.base)
            write_json_lines(place.output / "metrics.jsonl", log)
            if loss is not None:
                table = first_and_final(loss, summary)
                (place.output / "summary.md").write_text(table)
        return summary


def check_start(
    now: Tensor,
    groups: Sequence[TokenGroup],
    policy: Path,
    scored_by: ScoredBy,
    reference: Reference,
) -> None:
    """Check that, before the first update, policy and reference have equal logps of `groups`.

    Then the rewards of the first step are zero: exactly on a CPU, and up to `START_TOLERANCE` on
    other devices. Raises ValueError, which names the settings that differ.

    Args:
        now: the policy's logps of the groups, float64 [n, responses of a group].
        policy: the folder from which the policy was loaded.
        scored_by: how `now` was computed.
    """
    before = reference.of(groups)
    scored = torch.tensor([[r.num_scored for r in group.responses] for group in groups])
    off = (now - before).abs() / scored
    allowed = _tolerance(scored_by, reference.scored_by) * (400 / scored).sqrt().clamp(min=1)
    excess = (off / allowed).nan_to_num(torch.inf)
    worst, response = divmod(int(excess.argmax()), excess.shape[1])
    if excess[worst, response] <= 1:
        return
    differing = scored_by.differences(reference.scored_by)
    if model_digest(policy) != reference.model:
        differing.insert(0, "model (its weights or its config)")
    raise ValueError(
        f"training would not start from its reference: of row {groups[worst].row!r} the policy has "
        f"logps {_rounded(now[worst])}, the reference in {reference.folder} "
        f"{_rounded(before[worst])}. That is {off[worst, response]:.2g} a token apart, and "
        f"{allowed[worst, response]:.2g} is "
        f"allowed in {scored_by.dtype}. What differs between the two: "
        f"{', '.join(differing) or 'nothing that is recorded, so look at the hardware'}. Compute "
        "the reference from this policy, or set check_start=false if it is meant to be another"
    )


def _tolerance(one: ScoredBy, other: ScoredBy) -> float:
    if one.dtype is Dtype.float64 and one.backend != other.backend:
        return _OF_ANOTHER_BACKEND
    return START_TOLERANCE[one.dtype]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


@execution_detail
def _cold(config: TrainConfig, examples: int) -> str | None:
    """A notice if the run ends before the warm-up does."""
    passes = config.epochs, config.max_steps, config.batch_sizes
    steps = total_steps(examples, config.batch_size, *passes)
    warmup, rate = warmup_steps(config.optimizer, steps), config.optimizer.learning_rate
    if steps > warmup:
        return None
    share = config.optimizer.warmup_fraction
    rises = f"warmup_fraction={share:g} is {warmup}" if share else f"warmup_steps={warmup}"
    return f"the rate never reaches {rate:g}: the run has {steps} steps, and {rises}"


@execution_detail
def _untaught(log: Sequence[StepMetrics]) -> str | None:
    """A notice if no row has taught the model anything."""
    if any(line.get("grad_norm", math.nan) for line in log):
        return None
    return (
        "the gradient was 0 in every step, so the model has learnt nothing from the rows; look at "
        "the weights that it starts from (all 0?) and at the settings of the loss"
    )


@execution_detail
def _fallen(
    log: Sequence[StepMetrics], groups: Sequence[TokenGroup], config: TrainConfig
) -> str | None:
    """A notice if chosen responses became far less likely. Margins and accuracies may rise
    meanwhile, where rejected responses fall further.

    Args:
        log: the steps that led to the model, with ``logps/chosen``; else there is no notice.
        groups: the examples, of which a step took those that `batch_indices` gives.
    """
    steps = range(len(log))
    first, last = (_chosen(log, groups, config, each) for each in (steps, reversed(steps)))
    if first is None or last is None or first - last <= _FAR:
        return None
    return (
        f"chosen responses became far less likely: {first:.2f} nats a token at the start of the "
        f"run, {last:.2f} at its end, whatever the margins are; such a model often no longer "
        "answers or ends. Look at its answers; lower learning_rate, or bind the policy to its "
        "reference by another beta or to the chosen responses by nll_weight"
    )


def _chosen(
    log: Sequence[StepMetrics],
    groups: Sequence[TokenGroup],
    config: TrainConfig,
    steps: Iterable[int],
) -> float | None:
    """The mean log-probability of a chosen token in the first of `steps`, in nats."""
    logps, tokens, responses = 0.0, 0, 0
    for step in steps:
        sizes = config.batch_size, step, config.seed, config.batch_sizes
        indices = batch_indices(len(groups), *sizes)
        taken = (groups[i] for i in indices)
        chosen = [group.responses[0].num_scored for group in taken if group.label is not False]
        if chosen and "logps/chosen" in log[step]:
            logps += log[step]["logps/chosen"] * len(chosen)
            tokens, responses = tokens + sum(chosen), responses + len(chosen)
        if responses >= _ENOUGH:
            break
    return logps / tokens if tokens else None
