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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from steps.models.ranks import Ranks
from steps.models.workplace import Left, Workplace
from steps.online.behind import Earlier
from steps.online.config import RlConfig
from steps.online.learning_from import describe, experience_of, with_policy_logps
from steps.online.methods.experience import Experience, mismatch
from steps.online.rollouts import Rollout
from steps.online.updates import learn, logps_by_prompt, scores_first
from steps.scoring.scorer import Scorer
from steps.training.checkpoints import Checkpoints
from steps.training.loop import is_due
from steps.training.metrics import StepMetrics
from steps.training.trainer import Trainer


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


@dataclass(frozen=True)
class Learner:
    """The trainer, the settings, and the `reference` if the method needs one."""

    trainer: Trainer
    config: RlConfig
    reference: Scorer | None = None


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
    log = checkpoints.restore(learner.trainer)
    if checkpoints.reference:
        earlier.restore(checkpoints.reference)
    saved_at, saved = time.monotonic(), len(log)
    total = segment.last - segment.first

    def save() -> None:
        # No reference follows the policy here; earlier weights take its place in a checkpoint.
        tensors = earlier.tensors(segment.first + len(log))
        checkpoints.save(len(log), learner.trainer, log, reference=tensors)

    with checkpoints:
        while len(log) < total:
            iteration = segment.first + len(log)
            if earlier.lag:
                earlier.add(iteration, learner.trainer.get_weights(everywhere=True).result())
            try:
                rollouts = source.draw(iteration)
            except Left:
                if len(log) > saved:
                    save()
                    checkpoints.wait()
                raise
            experience = experience_of(rollouts, learner.config.max_new_tokens)
            experience = _score(learner, experience, place.ranks)
            agreement = _agreement(learner.config, source, experience, iteration)
            learnt, known = learn(learner.trainer, learner.config, experience, iteration)
            if known is not experience:
                agreement = _agreement(learner.config, source, known, iteration)
            keep(iteration, with_policy_logps(rollouts, known))
            before = log[-1]["num_tokens"] if log else segment.tokens
            tokens = sum(group.num_tokens for group in experience.groups)
            log.append(
                {
                    "step": iteration + 1,
                    **describe(rollouts, experience),
                    **agreement,
                    **learnt,
                    "num_tokens": before + tokens,
                }
            )
            done = len(log)
            since = done - saved, time.monotonic() - saved_at
            leaving, due = place.ranks.any(place.stopping(), is_due(learner.config, *since))
            if done < total and (leaving or due):
                save()
                saved_at, saved = time.monotonic(), done
            place.on_progress(done, total, log[-1])
            if done < total and leaving:
                checkpoints.wait()
                raise Left(f"left after iteration {iteration + 1}, of which there is a checkpoint")
    return log


def _score(learner: Learner, drawn: Experience, ranks: Ranks) -> Experience:
    """Add the logps of trainer and reference to the completions, if they are needed now."""
    if not drawn.groups:
        return drawn
    scorers: list[Trainer | Scorer | None] = [
        learner.trainer if scores_first(learner.config, ranks) else None,
        learner.reference,
    ]
    # One after the other: of several ranks, all must communicate for the same scorer at a time.
    policy, reference = (scorer and logps_by_prompt(scorer, drawn.groups) for scorer in scorers)
    return drawn.scored_by(policy, reference)


def _agreement(
    config: RlConfig, source: Source, experience: Experience, iteration: int
) -> StepMetrics:
    if experience.policy is None:
        return {}
    found = mismatch(experience.policy, experience.sampler)
    if config.max_mismatch is not None and not found["mismatch/k3"] <= config.max_mismatch:
        source.forget(iteration)
        raise ValueError(
            f"iteration {iteration + 1}: log-probabilities of trainer and sampler differ by "
            f"{found['mismatch/k3']:.3g} nats a token, and max_mismatch is "
            f"{config.max_mismatch:g}; look at the sampler's weights, or use off_policy=truncate"
        )
    return dict(found)
