"""Training of a student on a cached teacher: demonstrations, at whose tokens the student's
distribution is brought near the teacher's.

The teacher does not run. Each step reads its distribution for the tokens of the batch, at the
temperature of the loss, and the student's log-probabilities of the same ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from steps.data.vocabularies import require_whole_vocabulary
from steps.distillation.cached_teacher import Teacher, read_teacher
from steps.distillation.distributions import student_scores, student_values
from steps.losses.base import Totals
from steps.losses.distillation.distillation_loss import DistillationLoss
from steps.models.workplace import Workplace
from steps.scoring.architectures.routing import Routing
from steps.scoring.examples import TokenGroup, read_demonstrations
from steps.scoring.logps import GroupLoss, Scored, TokenLogps, backward, token_logps
from steps.scoring.packing import Pack, lengths_of
from steps.training.config import TrainConfig
from steps.training.objectives import Objective, OnDevice, weights_of
from steps.training.policy import Role, open_policy
from steps.training.run import Records, Run
from steps.training.trainer import GroupLosses, TrainedReadout


def run_distilled(
    init: Path,
    records: Records,
    config: TrainConfig,
    place: Workplace,
    loss: DistillationLoss,
    teacher: Path,
    held_out: tuple[Records, Path] | None = None,
) -> dict[str, Any]:
    """As `training.recipes.run_sft`, against the teacher in a folder that `run_teacher` wrote.

    Args:
        held_out: other records, with a teacher of their own.

    Raises ValueError if the student has another vocabulary, or the teacher lacks a row.
    """
    if config.backend is not None:
        raise ValueError(
            f"the loss {loss.name} reads a teacher's distribution, so it needs backend=null (torch)"
        )
    known = read_teacher(teacher)
    opened = open_policy(init, config, place.ranks, True, role_of_student(loss, known.vocabulary))

    def objective(records: Records, teacher: Teacher) -> Objective:
        require_whole_vocabulary(init, teacher.folder)
        require_size(opened.vocabulary, init, teacher.vocabulary, teacher.folder)
        groups = teacher.asked(read_demonstrations(records, teacher.vocabulary))
        return _objective(groups, loss, teacher)

    trained, evaluated = objective(records, known), None
    if held_out is not None:
        other = read_teacher(held_out[1])
        if other.shape != known.shape:
            raise ValueError(
                f"the teachers in {other.folder} and in {known.folder} keep {other.shape} and "
                f"{known.shape} of their tokens; compute both with one config"
            )
        evaluated = objective(held_out[0], other)
    others = () if evaluated is None else evaluated.groups
    run = Run(init, opened, trained.groups, config, place, others=others)
    return run.train(trained, evaluated)


def require_size(has: int, student: Path, gives: int, teacher: Path) -> None:
    """Raise ValueError if a student has fewer tokens than its teacher gives."""
    if has < gives:
        raise ValueError(
            f"the teacher in {teacher} gives {gives} tokens, and the student in {student} has "
            f"{has}; they must share one vocabulary"
        )


def role_of_student(loss: DistillationLoss, vocabulary: int) -> Role:
    """A language model that is read at the ids of a teacher over `vocabulary` tokens."""
    at = {"temperature": loss.temperature, "vocabulary": vocabulary}
    recorded = partial(student_values, **at)

    def backward_of(
        model: PreTrainedModel, pack: Pack, loss: GroupLoss, routing: Routing | None
    ) -> Scored:
        values = recorded(model, pack, routing)
        return backward(TokenLogps.of_values(values, pack.lengths), pack, loss, routing)

    read = partial(student_scores, **at)
    return Role(readout=TrainedReadout(read, recorded, token_logps, backward_of, hits=True))


def _objective(groups: Sequence[TokenGroup], loss: DistillationLoss, teacher: Teacher) -> Objective:
    lengths = lengths_of(groups)
    weights = weights_of(groups)

    def batch_loss(indices: Sequence[int], _: TokenLogps | None) -> "_DistilledBatch":
        chosen = list(indices)
        return _DistilledBatch(
            loss,
            Totals(len(chosen), int(lengths[chosen].sum())),
            weights[chosen],
            lengths[chosen],
            teacher.at([groups[i] for i in chosen], loss.temperature),
        )

    kept, vocabulary = teacher.shape
    return Objective(groups, batch_loss, width=3 + kept + (kept < vocabulary))


@dataclass(frozen=True)
class _DistilledBatch(OnDevice):
    """The loss of a batch of demonstrations. `teacher`: log p of each bucket, float64 [S, m]."""

    loss: DistillationLoss
    totals: Totals
    weights: Tensor
    lengths: Tensor
    teacher: Tensor

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        assert logps.others is not None
        assert logps.hits is not None

        def sums(values: Tensor) -> Tensor:
            return TokenLogps(values, logps.lengths).sums()[:, 0]

        theirs = TokenLogps(self.teacher, self.lengths).of(members, len(logps.tokens)).tokens
        shares = self.loss.shares(
            sums(self.loss.divergences(logps.others[:, 1:], theirs)),
            sums(logps.tokens),
            self.totals,
            self.weights[members],
            sums(logps.hits),
            sums(logps.others[:, 0].detach()),
        )
        return shares.losses, dict(shares.metrics)
