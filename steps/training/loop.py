"""The optimisation loop, written once for every loss and every backend.

What differs between losses is an `Objective`: the examples, and the loss of any batch of them. Its
values are shares of the batch's means, divided by counts of the whole batch which are known before
the step, so the gradient is that of the batch however a backend cuts it into forwards.

Every step is a function of the weights, the optimiser's state and its own number: the examples, the
rate and the dropout noise all follow from (seed, step). That is what makes a resumed run end with
the bits of an uninterrupted one. What is best so far, and when to stop, follow from the log. What
depends on a clock or a signal (when to save, whether to leave) ranks agree on after every step.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from steps.training.backends.protocol import Backend, Batch
from steps.training.batches import batch_indices, steps_per_epoch, total_steps
from steps.training.checkpoints import Checkpoints
from steps.training.config import TrainConfig
from steps.training.examples import TokenGroup
from steps.training.held_out import best_step, evaluate, has_stopped
from steps.training.leaving import Left, Stopping, never
from steps.training.metrics import OnProgress, StepMetrics, ignore_progress, sum_shares
from steps.training.objectives import Objective
from steps.training.optimization import learning_rate
from steps.training.ranks import ALONE, Ranks

Result = TypeVar("Result")
AtStart = Callable[[Sequence[TokenGroup], Tensor], None]
"""Called with the first batch and the logps that the untrained weights give it, float64
[n, responses of a group]; ends the run by raising an error."""


def train(
    backend: Backend,
    objective: Objective,
    config: TrainConfig,
    checkpoints: Checkpoints,
    on_progress: OnProgress = ignore_progress,
    held_out: Objective | None = None,
    at_start: AtStart | None = None,
    stopping: Stopping = never,
    ranks: Ranks = ALONE,
) -> list[StepMetrics]:
    """Trains `backend`, from the latest checkpoint if there is one; returns all steps' log.

    Each step logs `step` (1-based), `epoch`, `loss`, what the objective adds, `grad_norm` (before
    clipping), `learning_rate` and `num_tokens` (so far); a step after which `held_out` is scored
    also the objective's values there, with the prefix `eval_`. Progress has the device's usage
    beside these.

    The backend ends with the weights of the last step, or of the best one (`config.keep_best`).
    `at_start` is asked before the first update, and not on resuming. Raises FloatingPointError,
    naming the step, if a loss or a gradient is not finite, and Left, with a checkpoint of the step
    just done, once `stopping` says so on any of `ranks`.
    """
    log = checkpoints.restore(backend)
    with checkpoints:
        stepper = _Stepper(backend, objective, config, at_start)
        _steps(stepper, log, checkpoints, on_progress, held_out, stopping, ranks)
        best = best_step(log, config)
        if best is not None and best != len(log):
            backend.load_weights(checkpoints.best_weights(best)).result()
    return log


def _steps(
    stepper: "_Stepper",
    log: list[StepMetrics],
    checkpoints: Checkpoints,
    on_progress: OnProgress,
    held_out: Objective | None,
    stopping: Stopping,
    ranks: Ranks,
) -> None:
    """Adds to `log` until the last step, or the one after which training stops early."""
    backend, config = stepper.backend, stepper.config
    saved_at, saved_step = time.monotonic(), len(log)
    while len(log) < stepper.steps and not has_stopped(log, config):
        started = time.monotonic()
        metrics, batch = stepper.step(log)
        usage = backend.usage(batch, time.monotonic() - started)
        done = len(log) + 1
        if held_out is not None and _is_evaluated(config, done, stepper.steps):
            metrics |= evaluate(backend, held_out, config)
        log.append(metrics)
        best = best_step(log, config)
        if best == done:
            checkpoints.save_best(done, backend)
        since = done - saved_step, time.monotonic() - saved_at
        leaving, due = ranks.any(stopping(), _is_due(config, *since))
        # The last state becomes the model folder; a checkpoint of it would only be thrown away.
        if done < stepper.steps and (due or leaving):
            checkpoints.save(done, backend, log, best)
            saved_at, saved_step = time.monotonic(), done
        on_progress(done, stepper.steps, {**metrics, **usage})
        if done < stepper.steps and leaving:
            checkpoints.wait()
            raise Left(f"left after step {done} of {stepper.steps}, of which there is a checkpoint")


@dataclass(frozen=True)
class _Prepared:
    """The examples of one step, laid out."""

    indices: Sequence[int]
    batch: Batch
    baseline: Batch | None


class _Stepper:
    """Runs one step and, while the device is at it, prepares the next."""

    def __init__(
        self,
        backend: Backend,
        objective: Objective,
        config: TrainConfig,
        at_start: AtStart | None,
    ) -> None:
        self.backend = backend
        self.config = config
        self.steps = total_steps(
            len(objective.groups), config.batch_size, config.epochs, config.max_steps
        )
        self._objective = objective
        self._at_start = at_start
        self._next: _Prepared | None = None

    def step(self, log: Sequence[StepMetrics]) -> tuple[StepMetrics, Batch]:
        """The step after those of `log`: what is logged of it, and its batch."""
        number = len(log)
        now, self._next = self._next or self._prepare(number), None
        rate = learning_rate(self.config.optimizer, number, self.steps)
        loss = self._objective.batch_loss(now.indices, self._baseline(now))
        result = self.backend.forward_backward(now.batch, loss)
        if number == 0 and self._at_start is not None:
            self._at_start(now.batch.groups, _finite(result, number).logps)
        norm = self.backend.optim_step(rate)
        if number + 1 < self.steps:
            self._next = self._prepare(number + 1)
        shares = _finite(result, number)
        tokens = sum(group.num_tokens for group in now.batch.groups)
        return {
            "step": number + 1,
            "epoch": (number + 1)
            / steps_per_epoch(len(self._objective.groups), self.config.batch_size),
            **sum_shares({"loss": shares.losses, **shares.metrics}),
            "grad_norm": _finite(norm, number),
            "learning_rate": rate,
            "num_tokens": (log[-1]["num_tokens"] if log else 0) + tokens,
        }, now.batch

    def _prepare(self, step: int) -> _Prepared:
        objective, config = self._objective, self.config
        indices = batch_indices(len(objective.groups), config.batch_size, step, config.seed)
        batch = self.backend.prepare(
            [objective.groups[i] for i in indices], _noise(config.seed, step)
        )
        baseline = None
        if objective.baseline_groups is not None:
            baseline = self.backend.prepare([objective.baseline_groups[i] for i in indices])
        return _Prepared(indices, batch, baseline)

    def _baseline(self, prepared: _Prepared) -> Tensor | None:
        if prepared.baseline is None:
            return None
        return self.backend.logps(prepared.baseline).result().sequences


def _finite(future: Future[Result], step: int) -> Result:
    try:
        return future.result()
    except FloatingPointError as error:
        raise FloatingPointError(
            f"step {step + 1}: {error}. Lower the learning rate; if it is the first step, look at "
            "the rows, and at the weights that it starts from. This step has changed none of them."
        ) from error


def _is_due(config: TrainConfig, steps: int, seconds: float) -> bool:
    every_steps, every_seconds = config.checkpoint_every_steps, config.checkpoint_every_seconds
    return (every_steps is not None and steps >= every_steps) or (
        every_seconds is not None and seconds >= every_seconds
    )


def _is_evaluated(config: TrainConfig, done: int, steps: int) -> bool:
    every = config.eval_every_steps
    return every is not None and (done % every == 0 or done == steps)


def _noise(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0])
