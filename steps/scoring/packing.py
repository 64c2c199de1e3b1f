"""Several token groups as one row of tokens, without padding, with every prompt only once.

    tokens     prompt chosen | rejected | prompt chosen | rejected | filler
    segments   └─── 0 ─────┘   └─ 1 ──┘   └──── 2 ────┘   └─ 3 ──┘   └ 4 ─┘
    attention  causal          prompt of segment 0, then causal within itself …

The first segment of a group is its prompt and first response. Each further response is a segment
that attends to that prompt and to itself; its positions continue where the prompt ended (Wang and
Hegde 2024, Accelerating Direct Preference Optimization with Prefix Sharing). The last scored token
of a response and the tokens after it predict no scored token, so the pack leaves them out.
(Responses that are scored as a whole keep their last tokens. Their prompt is then a segment by
itself, and each response is a segment that attends to it.)

The filler rounds the row up to a number of tokens with which a group's result on a CPU does not
depend, in any bit, on the other groups of the pack (see `padded_rows`).
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from steps.scoring.examples import Groups, TokenGroup, TokenResponse, WholeResponse
from steps.shared.padded_rows import padded_rows

if TYPE_CHECKING:
    from steps.data.images.images_of_rows import ImageOfRow


class Segment(NamedTuple):
    """Rows [start, stop) of a pack, which attend to the rows [prefix_start, prefix_stop) and,
    causally, to each other."""

    start: int
    stop: int
    prefix_start: int
    prefix_stop: int

    @property
    def num_keys(self) -> int:
        """How many tokens the last row of the segment attends to."""
        return self.prefix_stop - self.prefix_start + self.stop - self.start


class ResponseSpan(NamedTuple):
    """The rows of a response's prompt, its own rows, and its range of scored tokens."""

    prompt_start: int
    prompt_stop: int
    start: int
    stop: int
    scored_start: int
    scored_stop: int


class GroupSpan(NamedTuple):
    """A group's range of scored tokens."""

    scored_start: int
    scored_stop: int


@dataclass(frozen=True)
class VarlenLayout:
    """The segments as arguments of a variable-length attention kernel.

    key_rows: int64 [K]; the rows of each segment's keys, one segment after the other.
    query_offsets, key_offsets: int32 [segments + 1]; where the queries or keys of each segment
        begin, and where the last segment's end.
    """

    key_rows: Tensor
    query_offsets: Tensor
    key_offsets: Tensor
    longest_query: int
    longest_key: int


@dataclass(frozen=True)
class Pack:
    """One forward's worth of groups: T tokens, S scored ones of N sequences (responses).

    input_ids, position_ids: int64 [T].
    predictors: int64 [S]; the row whose hidden state predicts each scored token. The last row of a
        prompt serves all of its responses. Of a response that is scored as a whole: its last row.
    targets: int64 [S]; the scored tokens; `NO_TOKEN` where a whole response is scored. They stand
        group by group, and in a group response by response.
    num_scored: int64 [N]; how many each sequence has.
    lengths: int64 [n, k]; the same by group, see `lengths_of`.
    images: of each response, those of its prompt; empty where no group has any.
    wanted: int64 [S, m]; other ids that are read at each scored token, where groups have any.
    """

    input_ids: Tensor
    position_ids: Tensor
    predictors: Tensor
    targets: Tensor
    num_scored: Tensor
    lengths: Tensor
    segments: tuple[Segment, ...]
    responses: tuple[ResponseSpan, ...]
    groups: tuple[GroupSpan, ...]
    images: tuple[tuple["ImageOfRow", ...], ...] = ()
    wanted: Tensor | None = None

    def to(self, device: torch.device | str) -> Self:
        """The pack with its tensors on `device`; from pinned memory the copy is asynchronous."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The pack with all of its tensors changed."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{n: change(v) for n, v in values.items() if isinstance(v, Tensor)})

    @cached_property
    def shared(self) -> dict[Any, Any]:
        """Masks and layouts on the pack's device, which the layers of a forward share."""
        return {}

    @cached_property
    def varlen(self) -> VarlenLayout:
        """The layout for variable-length attention, on the pack's device."""
        device = self.input_ids.device
        rows = [
            row
            for s in self.segments
            for row in (*range(s.prefix_start, s.prefix_stop), *range(s.start, s.stop))
        ]
        queries = [s.stop - s.start for s in self.segments]
        keys = [s.num_keys for s in self.segments]
        return VarlenLayout(
            without_waiting(torch.tensor(rows), device),
            without_waiting(_offsets(queries), device),
            without_waiting(_offsets(keys), device),
            max(queries),
            max(keys),
        )


def make_pack(groups: Sequence[TokenGroup], responses: int | None = None) -> Pack:
    """Lay out `groups`, in their order, on the CPU; `responses` as in `lengths_of`."""
    builder = _Builder()
    for group in groups:
        builder.add(group)
    builder.fill()
    scored = [response.scored_stop - response.scored_start for response in builder.responses]
    return Pack(
        input_ids=_tensor(builder.ids),
        position_ids=_tensor(builder.positions),
        predictors=_tensor(builder.predictors),
        targets=_tensor(builder.targets),
        num_scored=torch.tensor(scored),
        lengths=lengths_of(groups, responses),
        segments=tuple(builder.segments),
        responses=tuple(builder.responses),
        groups=tuple(builder.groups),
        images=_images(groups),
        wanted=_wanted(groups),
    )


def _tensor(numbers: Sequence[int]) -> Tensor:
    """As `torch.tensor`, which takes three times as long for a list."""
    return torch.from_numpy(np.array(numbers, dtype=np.int64))


def _images(groups: Sequence[TokenGroup]) -> tuple[tuple["ImageOfRow", ...], ...]:
    if not any(group.images for group in groups):
        return ()
    return tuple(group.images for group in groups for _ in group.responses)


def _wanted(groups: Sequence[TokenGroup]) -> Tensor | None:
    ids = [group.wanted for group in groups if group.wanted is not None]
    return torch.from_numpy(np.concatenate(ids).astype(np.int64)) if ids else None


def without_waiting(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to `device`. A large copy from memory that is not pinned would wait
    for all work in the GPU's queue."""
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


def lengths_of(groups: Sequence[TokenGroup], responses: int | None = None) -> Tensor:
    """The number of scored tokens of each response, int64 [n, k]; 0 where a group has fewer than k
    responses. k is `responses`, or the number of responses of the largest group."""
    if isinstance(groups, Groups):
        return torch.from_numpy(groups.facts["scored"].astype(np.int64))
    most = responses or max(len(group.responses) for group in groups)
    rows = [[response.num_scored for response in group.responses] for group in groups]
    return torch.tensor([row + [0] * (most - len(row)) for row in rows])


def plan_packs(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Assign examples to packs of at most `budget` tokens, by best-fit decreasing. An example that
    is longer than the budget gets its own pack. Deterministic.

    Returns indices into `lengths`, ascending in a pack; packs are ordered by their first index.
    """
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, pack), sorted
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = bisect_left(room, (lengths[index], -1))
        if place < len(room):
            left, pack = room.pop(place)
        else:
            left, pack = budget, len(packs)
            packs.append([])
        packs[pack].append(index)
        insort(room, (left - lengths[index], pack))
    return sorted(map(sorted, packs))


def plan_batches(groups: Sequence[TokenGroup], budget: int) -> list[list[int]]:
    """Assign groups to padded batches, in which each response is a row. Groups are taken by falling
    length, and rows x longest row stays within `budget` tokens. A group that exceeds the budget
    gets its own batch. Deterministic.

    Returns indices into `groups`, ascending in a batch; batches are ordered by their first index.
    """
    batches: list[list[int]] = []
    rows = limit = 0
    for index in sorted(range(len(groups)), key=lambda i: (-groups[i].longest_sequence, i)):
        rows += len(groups[index].responses)
        if rows > limit:
            batches.append([])
            rows = len(groups[index].responses)
            limit = budget // groups[index].longest_sequence
        batches[-1].append(index)
    return sorted(map(sorted, batches))


class _Builder:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.predictors: list[int] = []
        self.targets: list[int] = []
        self.segments: list[Segment] = []
        self.responses: list[ResponseSpan] = []
        self.groups: list[GroupSpan] = []

    def add(self, group: TokenGroup) -> None:
        scored = len(self.targets)
        prompt = self._extend(group.prompt_ids, 0)
        apart = any(isinstance(response, WholeResponse) for response in group.responses)
        if apart and prompt:
            self.segments.append(Segment(prompt.start, prompt.stop, prompt.start, prompt.start))
        for number, response in enumerate(group.responses):
            own = self._extend(response.ids[: response.num_fed], len(prompt))
            if number == 0 and not apart:
                segment = Segment(prompt.start, own.stop, prompt.start, prompt.start)
            else:
                segment = Segment(own.start, own.stop, prompt.start, prompt.stop)
            if segment.start < segment.stop:
                self.segments.append(segment)
            self._score(response, prompt, own)
        self.groups.append(GroupSpan(scored, len(self.targets)))

    def fill(self) -> None:
        start, stop = len(self.ids), padded_rows(len(self.ids))
        if stop > start:
            self._extend(self.ids[-1:] * (stop - start), 0)  # token 0 may have no embedding
            self.segments.append(Segment(start, stop, start, start))

    def _extend(self, ids: Sequence[int], first_position: int) -> range:
        start = len(self.ids)
        self.ids.extend(ids)
        self.positions.extend(range(first_position, first_position + len(ids)))
        return range(start, len(self.ids))

    def _score(self, response: TokenResponse, prompt: range, own: range) -> None:
        start = len(self.targets)
        if readouts := list(response.readouts):
            places, targets = zip(*readouts, strict=True)
            before = own.start - 1
            self.predictors += [before + place if place else prompt.stop - 1 for place in places]
            self.targets += targets
        self.responses.append(
            ResponseSpan(prompt.start, prompt.stop, own.start, own.stop, start, len(self.targets))
        )


def _offsets(lengths: Iterable[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
