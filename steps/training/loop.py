"""The optimisation loop, the same for every loss, on one device or many.

Losses differ in their `Objective`: the examples, and the loss of any batch of them. Its values are
shares of the batch's means: they are divided by counts of the whole batch, which are known before
the step. So the gradient does not depend on how a trainer cuts the batch into forwards.

Every step is a function of the weights, the optimiser's state and its own number: examples,
learning rate and dropout noise depend only on (seed, step). So a resumed run ends with the same
bits as an uninterrupted one. The best step and early stopping depend only on the log. After every
step, ranks agree on the decisions that depend on a clock or a signal: when to save, and whether to
stop.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from steps.models.ranks import ALONE, Ranks
from steps.models.workplace import Left, OnProgress, Stopping, ignore_progress, never
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import TokenLogps
from steps.scoring.scorer import Batch
from steps.training.beside.averaging import Averaged
from steps.training.checkpoints import Checkpoints
from steps.training.config import TrainConfig, UpdateConfig
from steps.training.held_out import best_step, evaluate, has_stopped
from steps.training.metrics import ROWS, RowLog, StepMetrics, sum_shares
from steps.training.objectives import MovingReference, NormalisedBatch, Objective, at_step
from steps.training.schedule import (
    batch_indices,
    epochs_of,
    learning_rate,
    noise,
    total_steps,
)
from steps.training.trainer import BatchLoss, Trainer, put_weights, reading_aligned
from steps.training.usage import profiled

Result = TypeVar("Result")
AtStart = Callable[[Sequence[TokenGroup], Tensor], None]
"""Called with the first batch and its logps under the untrained weights, float64 [n, k]. It may
raise an error to end the run."""


def train(
    trainer: Trainer,
    objective: Objective,
    config: TrainConfig,
    checkpoints: Checkpoints,
    on_progress: OnProgress = ignore_progress,
    held_out: Objective | None = None,
    at_start: AtStart | None = None,
    stopping: Stopping = never,
    ranks: Ranks = ALONE,
    output: Path | None = None,
) -> list[StepMetrics]:
    """Train from the latest checkpoint, if there is one; return the log of all steps.

    Each step logs `step` (1-based), `epoch`, `loss`, the objective's metrics, `grad_norm` (before
    clipping), `learning_rate` and `num_tokens` (so far). A step after which `held_out` is evaluated
    also logs the objective's values there, with the prefix `eval_`. Progress reports these and the
    device's usage.

    At the end, the trainer has the weights of the last step, or of the best one
    (`config.keep_best`); of these the average, if there is one (`config.ema_decay`). `at_start` is
    called before the first update, but not in a resumed run. With `output`, the values of rows are
    written there, if the config asks for them, and traces of steps beside it.

    Raises FloatingPointError, which names the step, if a loss or a gradient is not finite. Raises
    Left, after writing a checkpoint, when `stopping` is true on any of `ranks`.
    """
    averaged = Averaged(trainer, config.ema_decay)
    log = checkpoints.restore(trainer)
    with checkpoints:
        stepper = _Stepper(trainer, objective, config, at_start, checkpoints.reference)
        stepper.traces = output
        _steps(stepper, log, checkpoints, on_progress, held_out, stopping, ranks, averaged)
        if output is not None and stepper.rows is not None:
            stepper.rows.write(output / "rows.parquet", stepper.taken(len(log)))
        best = best_step(log, config)
        if best is not None and best != len(log):
            trainer.load_weights(checkpoints.best_weights(best)).result()
        else:
            averaged.show()
    return log


def _steps(
    stepper: "_Stepper",
    log: list[StepMetrics],
    checkpoints: Checkpoints,
    on_progress: OnProgress,
    held_out: Objective | None,
    stopping: Stopping,
    ranks: Ranks,
    averaged: Averaged,
) -> None:
    """Run steps and append them to `log`, until the last step or until training stops early."""
    trainer, config = stepper.trainer, stepper.config
    saved_at, saved_step = time.monotonic(), len(log)
    while len(log) < stepper.steps and not has_stopped(log, config):
        started = time.monotonic()
        with stepper.watched(len(log) + 1):
            metrics, batch = stepper.step(log)
        usage = trainer.usage(batch, time.monotonic() - started)
        done = len(log) + 1
        evaluated = held_out if _is_evaluated(config, done, stepper.steps) else None
        kept = config.snapshot_every_steps and done % config.snapshot_every_steps == 0
        with averaged.shown() if evaluated or kept else nullcontext():
            if evaluated is not None:
                metrics |= evaluate(trainer.scorer, evaluated, config)
            log.append(metrics)
            best = best_step(log, config)
            if best == done:
                checkpoints.save_best(done, trainer)
            if kept:
                checkpoints.save_snapshot(done, trainer)
        since = done - saved_step, time.monotonic() - saved_at
        leaving, due = ranks.any(stopping(), is_due(config, *since))
        # The last state becomes the model folder, so it needs no checkpoint.
        if done < stepper.steps and (due or leaving):
            checkpoints.save(done, trainer, log, best, stepper.reference)
            saved_at, saved_step = time.monotonic(), done
        on_progress(done, stepper.steps, {**metrics, **usage})
        if done < stepper.steps and leaving:
            checkpoints.wait()
            raise Left(f"left after step {done} of {stepper.steps}, of which there is a checkpoint")


@dataclass(frozen=True)
class _Prepared:
    """The prepared batches of one step."""

    indices: Sequence[int]
    batch: Batch
    baseline: Batch | None


class _Stepper:
    """Runs one step and prepares the next one while the device computes."""

    def __init__(
        self,
        trainer: Trainer,
        objective: Objective,
        config: TrainConfig,
        at_start: AtStart | None,
        reference: Mapping[str, Tensor],
    ) -> None:
        self.trainer = trainer
        self.config = config
        self.steps = total_steps(
            len(objective.groups),
            config.batch_size,
            config.epochs,
            config.max_steps,
            config.batch_sizes,
        )
        self._objective = objective
        self._at_start = at_start
        self._next: _Prepared | None = None
        following = objective.following
        self._moving = following and MovingReference(
            following,
            self.steps,
            self._logps,
            lambda: trainer.get_weights().result(),
            lambda weights: trainer.scorer.examine(lambda model: put_weights(weights, model)),
            {name: value for name, value in reference.items() if not name.startswith(ROWS)},
        )
        self.rows = RowLog(reference) if config.log_rows else None
        self.traces: Path | None = None

    @property
    def reference(self) -> Mapping[str, Tensor]:
        """What a checkpoint must bring along: of a reference that follows the policy; of rows."""
        rows = {} if self.rows is None else self.rows.state
        return rows if self._moving is None else {**self._moving.state, **rows}

    def watched(self, step: int) -> AbstractContextManager[None]:
        """A context that writes a trace of a 1-based step, if the config names it."""
        if self.traces is None or step not in self.config.profile_steps:
            return nullcontext()
        file = self.traces.with_name(f"{self.traces.name}.step-{step}.trace.json")
        return profiled(self.trainer.scorer.queue, file)

    def taken(self, steps: int) -> list[tuple[int, str, int]]:
        """Step (from 1), row and scored tokens of all examples of so many steps."""
        taken = []
        for step in range(steps):
            for index in self._indices(step):
                group = self._objective.groups[index]
                scored = sum(response.num_scored for response in group.responses)
                taken.append((step + 1, group.row, scored))
        return taken

    def step(self, log: Sequence[StepMetrics]) -> tuple[StepMetrics, Batch]:
        """Run the step after those in `log`; return its log entry and its batch."""
        number = len(log)
        now, self._next = self._next or self._prepare(number), None
        rate = learning_rate(self.config.optimizer, number, self.steps)
        loss = self._objective.batch_loss(now.indices, self._baseline(now))
        loss = at_step(loss, number, self.steps)
        if log and self._objective.continued is not None:
            loss = self._objective.continued(loss, log[-1])
        if self._moving is not None:
            loss = self._referred(loss, self._moving.of_step(number))
        if coefficient := self.config.z_loss_coef:
            loss = NormalisedBatch.of(loss, coefficient, now.batch.groups)
        result = self.trainer.forward_backward(now.batch, loss)
        if number == 0 and self._at_start is not None:
            self._at_start(now.batch.groups, finite(result, number).logps)
        norm = self.trainer.optim_step(rate)
        if number + 1 < self.steps:
            self._next = self._prepare(number + 1)
        shares = finite(result, number)
        if self.rows is not None:
            self.rows.add(shares.losses, shares.metrics, shares.logps)
        tokens = sum(group.num_tokens for group in now.batch.groups)
        return {
            "step": number + 1,
            "epoch": epochs_of(
                len(self._objective.groups),
                self.config.batch_size,
                number + 1,
                self.config.batch_sizes,
            ),
            **sum_shares({"loss": shares.losses, **shares.metrics}),
            **({} if math.isnan(size := finite(norm, number)) else {"grad_norm": size}),
            "learning_rate": rate,
            "num_tokens": (log[-1]["num_tokens"] if log else 0) + tokens,
        }, now.batch

    def _prepare(self, step: int) -> _Prepared:
        objective, config, indices = self._objective, self.config, self._indices(step)
        batch = self.trainer.prepare(
            [objective.groups[i] for i in indices], noise(config.seed, step)
        )
        baseline = None
        if objective.baseline_groups is objective.groups:
            baseline = batch
        elif objective.baseline_groups is not None:
            baseline = self.trainer.prepare([objective.baseline_groups[i] for i in indices])
        return _Prepared(indices, batch, baseline)

    def _indices(self, step: int) -> list[int]:
        config = self.config
        sizes = config.batch_size, step, config.seed, config.batch_sizes
        return batch_indices(len(self._objective.groups), *sizes)

    def _referred(self, loss: BatchLoss, reference: Tensor | None) -> BatchLoss:
        following = self._objective.following
        return (
            loss if following is None or reference is None else following.referred(loss, reference)
        )

    def _logps(self, step: int) -> Tensor:
        batch = self._prepare(step).batch
        return self.trainer.logps(batch).result().of(batch.groups).sums()

    def _baseline(self, prepared: _Prepared) -> TokenLogps | None:
        if prepared.baseline is None:
            return None
        scorer = self.trainer.scorer
        scorer = reading_aligned(scorer) if self._objective.aligned else scorer
        scored = scorer.logps(prepared.baseline).result()
        return scored.of(prepared.baseline.groups)


def finite(future: Future[Result], step: int) -> Result:
    """The result of the 0-based `step`; a FloatingPointError gets the step's number and advice."""
    try:
        return future.result()
    except FloatingPointError as error:
        raise FloatingPointError(
            f"step {step + 1}: {error}. Lower the learning rate; if it is the first step, look at "
            "the rows, and at the weights that it starts from. This step has changed none of them."
        ) from error


def is_due(config: UpdateConfig, steps: int, seconds: float) -> bool:
    """Whether a checkpoint is due, this many steps and seconds after the last one."""
    every_steps, every_seconds = config.checkpoint_every_steps, config.checkpoint_every_seconds
    return (every_steps is not None and steps >= every_steps) or (
        every_seconds is not None and seconds >= every_seconds
    )


def _is_evaluated(config: TrainConfig, done: int, steps: int) -> bool:
    every = config.eval_every_steps
    return every is not None and (done % every == 0 or done == steps)
