"""How far a student's distribution is from a teacher's at the same tokens, from two artifacts of
`cached_teacher`: no model runs.

Each artifact keeps the tokens that its own model finds likeliest. A divergence is over the tokens
that both keep, and all others together as one bucket; an entropy over those that a model keeps, and
its rest. So both are lower bounds, and exact where both keep the whole vocabulary.
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steps.data.vocabularies import TOKENIZER, read_vocabulary
from steps.distillation.cached_teacher import Teacher, rows_in
from steps.distillation.distributions import LOWEST
from steps.losses.distillation.forward_kl import ForwardKl
from steps.losses.distillation.reverse_kl import ReverseKl

_VALUES = (
    "forward_kl", "reverse_kl", "agreement", "student_entropy", "teacher_entropy", "shared_mass",
)  # fmt: skip
_REMEDY = "compute both with teacher_logprobs from the same tokens"
_ENOUGH = 0.9
_LOOSE = (
    f"the tokens that both models keep have less than {_ENOUGH} of the teacher's mass, so the "
    "divergences are far below those of whole distributions; compute both with a larger top_k"
)


def compare(student: Path, teacher: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The means over all scored tokens, in nats, with the numbers of rows and tokens, and `notices`
    if the bounds are loose; and the means at the first scored token of each row, the second, and so
    on.

    Of each artifact one file is in memory at a time.

    Raises ValueError, which names the row, unless both folders have the same rows in one order.
    """
    sums, counts = np.zeros((0, len(_VALUES))), np.zeros(0, np.int64)
    for values in _by_row(student, teacher):
        if (more := len(values) - len(counts)) > 0:
            sums, counts = np.pad(sums, ((0, more), (0, 0))), np.pad(counts, (0, more))
        sums[: len(values)] += values
        counts[: len(values)] += 1

    def means(of: np.ndarray, count: int) -> dict[str, Any]:
        return {"tokens": count, **dict(zip(_VALUES, (of / count).tolist(), strict=True))}

    every = {"rows": int(counts[0]), **means(sums.sum(axis=0), int(counts.sum()))}
    every |= {"notices": [_LOOSE]} if every["shared_mass"] < _ENOUGH else {}
    numbered = enumerate(zip(sums, counts.tolist(), strict=True), 1)
    return every, [{"position": at, **means(*of_position)} for at, of_position in numbered]


def _by_row(student: Path, teacher: Path) -> Iterator[np.ndarray]:
    files = [folder / TOKENIZER for folder in (student, teacher)]
    known = [read_vocabulary(file) for file in files if file.is_file()]
    if known[1:] and known[0] != known[1]:
        raise ValueError(f"{files[0]} and {files[1]} give other texts to token ids; {_REMEDY}")
    both: Iterator[Any] = zip_longest(rows_in(student), rows_in(teacher), fillvalue=(None, None))
    for number, ((name, q), (other, p)) in enumerate(both):
        if name != other or len(q.ids) != len(p.ids) or q.vocabulary != p.vocabulary:
            raise ValueError(
                f"row {number} of {student} and of {teacher} is not the same ({name} and {other}), "
                f"or its tokens are of other vocabularies; {_REMEDY}"
            )
        yield _values(q, p).numpy()


def _values(student: Teacher, teacher: Teacher) -> Tensor:
    """The `_VALUES` of each of S scored tokens, float64 [S, 6]."""
    log_q, log_p = student.at(None, 1.0), teacher.at(None, 1.0)
    token = np.arange(len(log_p))[:, None] * teacher.vocabulary
    found = [(token + each.ids).ravel() for each in (student, teacher)]
    _, of_q, of_p = np.intersect1d(*found, assume_unique=True, return_indices=True)
    shape = teacher.ids.shape
    q = _buckets(log_q, student.ids.shape, of_q, of_p, shape)
    p = _buckets(log_p, shape, of_p, of_p, shape)
    divergences = [d.divergences(q, p) for d in (ForwardKl(), ReverseKl())]
    agreement = torch.from_numpy(student.ids[:, 0] == teacher.ids[:, 0])
    entropies = [-(each.exp() * each).sum(dim=1) for each in (log_q, log_p)]
    columns = [*divergences, agreement.double(), *entropies, p[:, :-1].exp().sum(dim=1)]
    return torch.stack(columns, dim=1)


def _buckets(
    logps: Tensor, kept: tuple[int, ...], shared: np.ndarray, at: np.ndarray, shape: tuple[int, ...]
) -> Tensor:
    """`logps` [S, ≥ k] of the `shared` ones of its first [S, k], put `at` their places of `shape`;
    and of all others together. [S, shape[1] + 1]"""
    own, others = logps[:, : kept[1]].reshape(-1), torch.ones(kept[0] * kept[1], dtype=torch.bool)
    buckets = torch.full((shape[0] * shape[1],), LOWEST, dtype=logps.dtype)
    buckets[at], others[shared] = own[shared], False
    left = own.where(others, -torch.inf).view(kept)
    rest = torch.cat([left, logps[:, kept[1] :]], dim=1).logsumexp(dim=1, keepdim=True)
    return torch.cat([buckets.view(shape), rest.clamp(min=LOWEST)], dim=1)
