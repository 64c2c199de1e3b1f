"""A teacher's distribution at each scored token of demonstrations, computed once for all students.

    OUTPUT/teacher-00000.parquet   group_id   what the row's tokens and mask are hashed to
                                   scored     the number n of its scored tokens
                                   logps      log p of these tokens, [n], in float32 or float64
                                   ids        the k likeliest tokens there, by falling p; [n · k]
                                   top        their log p, [n · k], in `TeacherConfig.precision`
                                   rest       of all others log Σ p and log Σ √p, [n · 2]
    OUTPUT/tokenizer.json          what the ids mean

A reader looks rows up by `group_id`, never by position, and compares the numbers of scored tokens.
Whoever learns from the files is not in them: another student, rate, loss or temperature T reads the
same. With T the rest needs Σ p^(1/T), whose logarithm is a convex function of 1/T. It is known at 1
and ½, and is log (V − k) at 0. Between these it lies below their chord, which is used; at T = 1 and
T = 2 nothing is estimated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, zip_longest
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from steps.data.vocabularies import copy_tokenizer, require_whole_vocabulary
from steps.distillation.config import Precision, TeacherConfig
from steps.distillation.distributions import LOWEST, teacher_readout
from steps.models.config import Dtype
from steps.models.ranks import Ranks
from steps.models.workplace import Workplace
from steps.scoring.examples import Groups, TokenGroup, read_demonstrations
from steps.scoring.reference import (
    MODEL,
    OpenModel,
    ScoredFiles,
    distinct,
    lists,
    open_model,
    require_finite_scores,
    verified,
    write_scores,
)
from steps.scoring.scored_by import model_digest

_TOP_K, _VOCABULARY = b"top_k", b"vocabulary"
_NUMBERS = ("logps", "ids", "top", "rest")


def run_teacher(
    model: Path,
    records: Iterable[Mapping[str, Any]],
    config: TeacherConfig,
    place: Workplace,
    tokens: Path,
    context: Iterable[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Read the distribution of a model folder at every scored token of `records`, in the format of
    `examples.read_demonstrations`.

    Finished files stay in `scratch` and are not computed again.

    Args:
        tokens: the folder with the tokenizer of the records.
        context: records that the model reads in place of them; see `in_context`.

    Returns the metrics `rows`, `tokens` (the scored ones), `logps` (their mean) and `mass` (the
    mean of what the kept tokens have of the distribution), and `notices` if there are any; on other
    ranks than the first, an empty dict.

    Raises:
        ValueError: the model's tokens mean something else.
        FloatingPointError: the logps of a row, which the message names, are not finite.
        Left: `place.stopping` is true on any rank; raised between two files.
    """
    opened = open_teacher(model, config, place.ranks, tokens)
    groups = read_demonstrations(records, opened.vocabulary)
    if context is not None:
        seen = read_demonstrations(context, opened.vocabulary)
        groups = Groups.of(in_context(groups, seen))
    groups = distinct(groups)
    form, notices = opened.make_ready(groups)
    count, logps, mass = 0, 0.0, 0.0
    for table in write_scores(opened.model, groups, config.groups_per_shard, form, place):
        count += (of_tokens := _flat(table["logps"])).size
        logps += float(of_tokens.astype(np.float64).sum())
        mass += float(np.exp(_flat(table["top"]).astype(np.float64)).sum())
    if not place.ranks.is_first:
        return {}
    copy_tokenizer(tokens, place.output)
    means = {"logps": logps / count, "mass": mass / count}
    told = {"notices": notices} if notices else {}
    return {"rows": len(groups), "tokens": count, **means, **told}


def in_context(groups: Sequence[TokenGroup], seen: Sequence[TokenGroup]) -> Iterator[TokenGroup]:
    """`seen` under the ids of `groups`: what a teacher reads in place of each row.

    Raises ValueError, which names the row, unless they are the same rows in the same order with the
    same answers, token by token and mask by mask, each behind one prompt.
    """
    contexts = dict[str, tuple[str, str]]()
    both: Iterable[tuple[Any, Any]] = zip_longest(groups, seen)
    for group, other in both:
        if group is None or other is None or group.row != other.row:
            (row, *_) = (found.row for found in (group, other) if found is not None)
            raise ValueError(
                f"row {row!r} is not at the same place in the tokens and in their context; make "
                "both from the same rows, and leave out none of one alone"
            )
        if group.responses != other.responses:
            raise ValueError(
                f"row {group.row!r} has other answer tokens in its context; make the context with "
                "add_privilege, which copies answers token by token"
            )
        row, first = contexts.setdefault(group.group_id, (other.row, other.group_id))
        if first != other.group_id:
            raise ValueError(
                f"the rows {row!r} and {other.row!r} are the same tokens in two contexts, of "
                "which a student could learn from one only; leave out one of them"
            )
        yield replace(other, group_id=group.group_id)


@dataclass(frozen=True)
class OpenTeacher:
    """A loaded teacher, whose distribution is over `vocabulary` tokens."""

    model: OpenModel
    vocabulary: int
    _folder: Path
    _config: TeacherConfig
    _ranks: Ranks

    def make_ready(self, groups: Sequence[TokenGroup]) -> tuple[ScoredFiles, list[str]]:
        """Choose how the teacher reads groups like these; the form of its files, and notices."""
        scored_by, notices = self.model.make_ready(groups)
        config, top_k = self._config, min(self._config.top_k, self.vocabulary)
        told = {MODEL: model_digest(self._folder) if self._ranks.is_first else ""}
        told |= {_TOP_K: str(top_k), _VOCABULARY: str(self.vocabulary), **scored_by.metadata()}
        schema = _schema(config).with_metadata(told)
        return ScoredFiles(
            "teacher", schema, partial(_columns, top_k=top_k, config=config)
        ), notices


def open_teacher(folder: Path, config: TeacherConfig, ranks: Ranks, tokens: Path) -> OpenTeacher:
    """Load the teacher in a folder.

    Args:
        tokens: the folder with the tokenizer of what it will read.

    Raises ValueError if the teacher's tokens mean something else.
    """
    known = require_whole_vocabulary(folder, tokens)
    sizes: list[int] = []

    def readout(head: int) -> Any:
        sizes.append(head if known is None else min(head, known))
        return teacher_readout(min(config.top_k, sizes[0]), sizes[0])

    model = open_model(folder, config, ranks, readout=readout)
    return OpenTeacher(model, sizes[0], folder, config, ranks)


@dataclass(frozen=True)
class Teacher:
    """What files of a teacher's distribution hold, for N scored tokens.

    logps: of the tokens themselves, [N].
    ids: int32 [N, k].
    top: [N, k], in the kept dtype.
    rest: of all others log Σ p and log Σ √p, [N, 2].
    vocabulary: V, the number of tokens that the distribution is over.
    """

    folder: Path
    vocabulary: int
    logps: np.ndarray
    ids: np.ndarray
    top: np.ndarray
    rest: np.ndarray
    _spans: Mapping[str, slice]

    @property
    def shape(self) -> tuple[int, int]:
        """How many tokens are kept at each place, and of how many."""
        return self.ids.shape[1], self.vocabulary

    @property
    def is_whole(self) -> bool:
        """Whether every token is kept, so that there is no rest."""
        return self.ids.shape[1] == self.vocabulary

    def asked(self, groups: Sequence[TokenGroup]) -> list[TokenGroup]:
        """`groups` with the ids that the teacher has at each of their scored tokens.

        Raises ValueError, which names the row, if a group is missing or if it has another number of
        scored tokens.
        """
        return [replace(group, wanted=self.ids[self._span(group)]) for group in groups]

    def logps_of(self, groups: Sequence[TokenGroup]) -> Tensor:
        """The teacher's log p of the scored tokens of `groups`, one after another, float64 [S]."""
        return self._of(groups, self.logps)

    def at(self, groups: Sequence[TokenGroup] | None, temperature: float) -> Tensor:
        """The teacher's log p at `temperature` for the scored tokens of `groups` (of all rows, if
        None), one after the other: of each kept token and, unless it `is_whole`, of all others;
        float64 [S, k + 1], of which the sum of p is 1."""
        top, rest = (self._of(groups, kept) for kept in (self.top, self.rest))
        top = top / temperature
        if not self.is_whole:
            top = torch.cat([top, self._of_rest(rest, 1 / temperature)[:, None]], dim=1)
        return top.log_softmax(dim=1)

    def _of(self, groups: Sequence[TokenGroup] | None, kept: np.ndarray) -> Tensor:
        rows = [kept] if groups is None else [kept[self._span(group)] for group in groups]
        return torch.from_numpy(np.concatenate(rows)).double()

    def _of_rest(self, rest: Tensor, power: float) -> Tensor:
        """log Σ p^power over the rest: on the chord between the two nearest of the powers that are
        known (and beyond 1 on the line through the last two), see the module."""
        at_one, at_half = rest.unbind(1)
        if power >= 0.5:
            line = at_half + (power - 0.5) * 2 * (at_one - at_half)
        else:
            even = log(self.vocabulary - self.ids.shape[1])
            line = even + power * 2 * (at_half - even)
        return line.clamp(min=LOWEST)

    def _span(self, group: TokenGroup) -> slice:
        span = self._spans.get(group.group_id)
        if span is None:
            raise ValueError(
                f"the teacher in {self.folder} has no row {group.row!r} ({group.group_id}); "
                "compute it from the same tokens"
            )
        if (scored := sum(r.num_scored for r in group.responses)) != span.stop - span.start:
            raise ValueError(
                f"the teacher in {self.folder} scored {span.stop - span.start} tokens of row "
                f"{group.row!r}, but these tokens mark {scored}; compute it from the same tokens"
            )
        return span


def read_teacher(folder: Path) -> Teacher:
    """The distributions in `folder`; raises ValueError if files are missing or damaged."""
    return teacher_in(_files(folder))


def rows_in(folder: Path) -> Iterator[tuple[str, Teacher]]:
    """The id of each row in `folder` with what is known of this row alone, in the order of the
    files, of which one is in memory at a time; raises ValueError as `read_teacher`."""
    for file in _files(folder):
        every = teacher_in([file])
        for group_id, span in every._spans.items():
            numbers = {name: getattr(every, name)[span] for name in _NUMBERS}
            at = {group_id: slice(0, span.stop - span.start)}
            yield group_id, replace(every, _spans=at, **numbers)


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("teacher-*.parquet"))
    if not files:
        raise ValueError(f"{folder} has no teacher; compute it with teacher_logprobs")
    return files


def teacher_in(files: Sequence[Path]) -> Teacher:
    """The distributions in some files of one folder, as `read_teacher`."""
    folder = files[0].parent
    tables = [verified(file, ["group_id", "scored", *_NUMBERS]) for file in files]
    told = tables[0].schema.metadata or {}
    if any((table.schema.metadata or {}) != told for table in tables):
        raise ValueError(f"the files in {folder} were not computed in one way; compute them again")
    top_k = int(told[_TOP_K])
    scored = [count for table in tables for count in table["scored"].to_pylist()]
    ids = [group_id for table in tables for group_id in table["group_id"].to_pylist()]
    stops = list(accumulate(scored))
    spans = (slice(stop - n, stop) for stop, n in zip(stops, scored, strict=True))

    def joined(name: str, width: int) -> np.ndarray:
        return np.concatenate([_flat(table[name]) for table in tables]).reshape(-1, width)

    logps, *top = map(joined, _NUMBERS, (1, top_k, top_k, 2))
    at = dict(zip(ids, spans, strict=True))
    return Teacher(folder, int(told[_VOCABULARY]), logps[:, 0], top[0], top[1], top[2], at)


def united(parts: Sequence[Teacher]) -> Teacher:
    """Teachers of different rows, which keep as many tokens of one vocabulary, as one."""
    ends = list(accumulate(len(part.logps) for part in parts))
    spans = {
        group_id: slice(span.start + end - len(part.logps), span.stop + end - len(part.logps))
        for part, end in zip(parts, ends, strict=True)
        for group_id, span in part._spans.items()
    }
    every = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _NUMBERS}
    return replace(parts[0], _spans=spans, **every)


def _columns(
    groups: Sequence[TokenGroup], values: Sequence[Tensor], top_k: int, config: TeacherConfig
) -> list[pa.Array]:
    scored = [sum(response.num_scored for response in group.responses) for group in groups]
    every = torch.cat(list(values))
    finite = [of_row.isfinite().all() for of_row in every.split(scored)]
    require_finite_scores(groups, torch.where(torch.stack(finite), 0.0, torch.nan)[:, None])
    logps, top, rest, ids = every.split([1, top_k, 2, top_k], dim=1)
    kept = torch.float16 if config.precision is Precision.float16 else torch.float32
    return [
        pa.array(scored, pa.int32()),
        _by_row(logps, scored),
        _by_row(ids.int(), scored),
        _by_row(top.to(kept), scored),
        _by_row(rest.to(kept), scored),
    ]


def _by_row(values: Tensor, scored: Sequence[int]) -> pa.ListArray:
    width = values.shape[1]
    return lists(values.contiguous().numpy().ravel(), [width * n for n in scored])


def _flat(column: pa.ChunkedArray) -> np.ndarray:
    column = column.combine_chunks()
    starts, values = np.from_dlpack(column.offsets), np.from_dlpack(column.values)
    return values[starts[0] : starts[-1]]


def _schema(config: TeacherConfig) -> pa.Schema:
    of_token = pa.float64() if config.dtype is Dtype.float64 else pa.float32()
    kept = pa.float16() if config.precision is Precision.float16 else pa.float32()
    columns = {"ids": pa.int32(), "top": kept, "rest": kept}
    return pa.schema(
        [
            pa.field("group_id", pa.string(), nullable=False),
            pa.field("scored", pa.int32(), nullable=False),
            pa.field("logps", pa.list_(of_token), nullable=False),
            *(pa.field(n, pa.list_(kind), nullable=False) for n, kind in columns.items()),
        ]
    )
