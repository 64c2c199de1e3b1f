"""The loop of online training, the same for every method and every source of rollouts.

    source ─ draw ─► rollouts ─ score ─► experience ─ method ─► optimiser steps ─► next iteration

Iteration i is a function of the weights, the optimiser's state and i: its prompts and samples
depend only on (seed, i), the order of its examples only on (seed, i, inner epoch). So the result is
the same after a kill, and the same whether i is the 50th iteration of one segment or the first of
the next. Completions are stored as soon as they are finished, and a killed run reads them again.

Methods compare the policy with the trainer's own logps at the start of the iteration, not with
those of the sampler, which uses other kernels. The difference between the two is logged.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from steps.models.workplace import Left, Workplace
from steps.online.learning_from import describe, experience_of, with_policy_logps
from steps.online.rollouts import Rollout
from steps.online.staleness import Earlier
from steps.online.updates import Learner, learn
from steps.shared.execution_detail import execution_detail
from steps.training.checkpoints import Checkpoints
from steps.training.loop import is_due
from steps.training.metrics import StepMetrics


class Source(Protocol):
    """A source of an iteration's rollouts: a sampler with the trainer's weights, or a recording."""

    def draw(self, iteration: int) -> Sequence[Rollout]:
        """The rollouts of the 0-based `iteration`, with rewards, ordered by row and number."""
        ...

    def forget(self, iteration: int) -> None:
        """Keep nothing of an iteration that was refused: an engine that is mended draws it anew."""
        ...


Keep = Callable[[int, Sequence[Rollout]], None]
"""Called with an iteration's rollouts, including the trainer's own logps if the method uses them.
"""


@dataclass(frozen=True)
class Segment:
    """The iterations [first, last) of a run; `tokens` were trained on before."""

    first: int
    last: int
    tokens: int = 0


def iterate(
    learner: Learner,
    source: Source,
    segment: Segment,
    checkpoints: Checkpoints,
    place: Workplace,
    keep: Keep,
    earlier: Earlier,
) -> list[StepMetrics]:
    """Run the segment's iterations from the latest checkpoint on; return the log of all of them.

    The caller must have loaded the segment's start into the trainer and into `earlier`, which gets
    the weights of each iteration where sampling is behind.

    Raises FloatingPointError, which names the iteration, if a loss or gradient is not finite; Left,
    after writing a checkpoint, when the run must stop; ValueError if the mismatch between trainer
    and sampler exceeds `max_mismatch`.
    """
    loop = _Loop(learner, source, segment, checkpoints, place, keep, earlier)
    loop.restore()
    with checkpoints:
        while loop.remaining > 0:
            began = time.monotonic()
            rollouts = loop.draw()
            drawn = time.monotonic()
            loop.log.append(loop.learn(rollouts))
            loop.save_or_leave(loop.speeds(rollouts, drawn - began, time.monotonic() - drawn))
    return loop.log


@dataclass(eq=False)
class _Loop:
    """The state of one call of `iterate`; `saved` of the `log`'s iterations are in a checkpoint."""

    learner: Learner
    source: Source
    segment: Segment
    checkpoints: Checkpoints
    place: Workplace
    keep: Keep
    earlier: Earlier
    log: list[StepMetrics] = field(default_factory=list)
    saved: int = 0
    saved_at: float = 0.0

    @property
    def iteration(self) -> int:
        """The 0-based number of the next iteration."""
        return self.segment.first + len(self.log)

    @property
    def remaining(self) -> int:
        return self.segment.last - self.iteration

    def restore(self) -> None:
        """Begin behind the latest checkpoint, if there is one."""
        self.log = self.checkpoints.restore(self.learner.trainer)
        if self.checkpoints.reference:
            self.earlier.restore(self.checkpoints.reference)
        self._mark_saved()

    def draw(self) -> Sequence[Rollout]:
        """The iteration's rollouts; Left, after a checkpoint, if the run must stop meanwhile."""
        if self.earlier.lag:
            weights = self.learner.trainer.get_weights(everywhere=True).result()
            self.earlier.add(self.iteration, weights)
        try:
            return self.source.draw(self.iteration)
        except Left:
            if len(self.log) > self.saved:
                self._save()
                self.checkpoints.wait()
            raise

    def learn(self, rollouts: Sequence[Rollout]) -> StepMetrics:
        """Learn from the iteration's rollouts, and keep them; the iteration's line of the log."""
        learner, config, iteration = self.learner, self.learner.config, self.iteration
        needs_rewards = config.method.needs_rewards
        drawn = experience_of(
            rollouts, config.max_new_tokens, config.overlong_buffer, needs_rewards
        )
        if learner.teacher and drawn.groups:
            groups, teacher = learner.teacher.of(rollouts[0].iteration, drawn.groups)
            drawn = replace(drawn, groups=groups, teacher=teacher)
        learnt, old = learn(learner, drawn, iteration, partial(self.source.forget, iteration))
        self.keep(iteration, with_policy_logps(rollouts, old, needs_rewards))
        before = self.log[-1]["num_tokens"] if self.log else self.segment.tokens
        return {
            "step": iteration + 1,
            **describe(rollouts, drawn),
            **learnt,
            "num_tokens": before + sum(group.num_tokens for group in drawn.groups),
        }

    @execution_detail
    def speeds(
        self, rollouts: Sequence[Rollout], sampling: float, updating: float
    ) -> dict[str, float]:
        """Seconds of an iteration, and tokens per second: those that were drawn, and those by which
        `num_tokens` rose. They depend on the clock, so the step's log has them and no artifact."""
        before = self.log[-2]["num_tokens"] if len(self.log) > 1 else self.segment.tokens
        drawn, learnt = sum(sum(r.scored) for r in rollouts), self.log[-1]["num_tokens"] - before
        told = {
            "seconds/sampling": sampling,
            "seconds/updating": updating,
            "tokens_per_second/sampling": drawn / max(sampling, 1e-9),
            "tokens_per_second/updating": learnt / max(updating, 1e-9),
        }
        if self.place.ranks.is_first:
            line = "  ".join(f"{name} {value:.4g}" for name, value in told.items())
            print(f"iteration {self.iteration}  {line}", flush=True)
        return told

    def save_or_leave(self, speeds: Mapping[str, float]) -> None:
        """After an iteration: write a checkpoint if one is due; Left if the run must stop."""
        done, place = len(self.log), self.place
        since = done - self.saved, time.monotonic() - self.saved_at
        leaving, due = place.ranks.any(place.stopping(), is_due(self.learner.config, *since))
        if self.remaining and (leaving or due):
            self._save()
            self._mark_saved()
        place.on_progress(done, done + self.remaining, {**self.log[-1], **speeds})
        if self.remaining and leaving:
            self.checkpoints.wait()
            raise Left(f"left after iteration {self.iteration}, of which there is a checkpoint")

    def _save(self) -> None:
        # No reference follows the policy here; earlier weights take its place in a checkpoint.
        tensors = self.earlier.tensors(self.iteration)
        self.checkpoints.save(len(self.log), self.learner.trainer, self.log, reference=tensors)

    def _mark_saved(self) -> None:
        self.saved_at, self.saved = time.monotonic(), len(self.log)
