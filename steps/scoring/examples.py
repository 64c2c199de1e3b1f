"""Examples for training and scoring: rows of a tokens artifact as checked, frozen token ids.

Every example is a `TokenGroup`: a prompt and k responses to it. A demonstration or a labelled
completion has one response, a preference pair two (the chosen one first), rollouts have more. Every
response has at least one scored token, as its mean would be NaN otherwise. The errors here name the
row and the field.

Of rows that are read, only a few numbers are in memory (`Groups`): their tokens lie in a file that
is mapped into memory, and become a `TokenGroup` when a batch needs them.
"""

import hashlib
import json
import math
import mmap
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

if TYPE_CHECKING:
    from steps.data.images.images_of_rows import ImageOfRow


@dataclass(frozen=True)
class TokenResponse:
    """A response. `scored` marks its scored tokens; None means all. The other tokens (a user's
    turn between two answers, a token that a tokenizer merged with the prompt) are context."""

    ids: tuple[int, ...]
    scored: tuple[bool, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_scored(self) -> int:
        """The number of scored tokens."""
        return len(self.ids) if self.scored is None else sum(self.scored)

    @property
    def scored_flags(self) -> tuple[bool, ...]:
        """For each token, whether it is scored."""
        return (True,) * len(self.ids) if self.scored is None else self.scored

    @property
    def num_fed(self) -> int:
        """How many tokens a model must read: those before the last scored token."""
        if self.scored is None:
            return len(self.ids) - 1
        return len(self.ids) - 1 - self.scored[::-1].index(True)

    @property
    def readouts(self) -> Iterator[tuple[int, int]]:
        """For each scored token, its position in the response and its id. A model's output after
        that many tokens of the response is used."""
        every = enumerate(self.ids)
        if self.scored is None:
            return every
        return (place for is_scored, place in zip(self.scored, every, strict=True) if is_scored)

    def after_nothing(self) -> "TokenResponse":
        """The response after an empty prompt: nothing predicts its first token."""
        return replace(self, scored=(False, *self.scored_flags[1:]))


@dataclass(frozen=True)
class WholeResponse(TokenResponse):
    """A response that gets one score as a whole, from the hidden state of its last token. The mask
    is ignored.

    In a pack, the prompt of whole responses is a segment of its own. So on a CPU, the score of a
    response does not depend, in any bit, on the other responses to the prompt.
    """

    @property
    def num_scored(self) -> int:
        return 1

    @property
    def num_fed(self) -> int:
        return len(self.ids)

    @property
    def readouts(self) -> Iterator[tuple[int, int]]:
        yield len(self.ids), NO_TOKEN

    def after_nothing(self) -> TokenResponse:
        return self


NO_TOKEN = -1
"""The target in place of a token id where a whole response is scored."""


@dataclass(frozen=True)
class TokenGroup:
    """A prompt and the responses that share it. Equal `group_id`s mean equal tokens and masks.

    The prompt may be empty; nothing predicts the first token of a response then, and it is not
    scored. `label`: the verdict on the response of an unpaired row. `weight`: what the group counts
    for in its loss. `images`: those that the prompt has placeholders for, in order. `wanted`: other
    ids that are read at each of its S scored tokens, int32 [S, m].

    Raises ValueError, which names the row, for a response without a scored token.
    """

    row: str
    group_id: str
    prompt_ids: tuple[int, ...]
    responses: tuple[TokenResponse, ...]
    label: bool | None = None
    weight: float = 1.0
    images: tuple["ImageOfRow", ...] = ()
    wanted: np.ndarray | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            responses = tuple(response.after_nothing() for response in self.responses)
            object.__setattr__(self, "responses", responses)
        if not self.responses or not all(response.num_scored for response in self.responses):
            raise ValueError(
                f"row {self.row!r}: a response has no token that is scored and follows another; "
                "drop the row when tokenising"
            )

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sequences; the prompt counts once for each response."""
        return sum(len(self.prompt_ids) + len(response) for response in self.responses)

    @property
    def packed_tokens(self) -> int:
        """How many tokens one packed forward over the group reads: the prompt once, and no tokens
        after the last scored token of a response."""
        return len(self.prompt_ids) + sum(response.num_fed for response in self.responses)

    @property
    def longest_sequence(self) -> int:
        """How many tokens a model reads of the longest sequence."""
        return len(self.prompt_ids) + max(response.num_fed for response in self.responses)


def as_whole(group: TokenGroup) -> TokenGroup:
    """The group with one score for each response, from the response's last token."""
    responses = tuple(WholeResponse(response.ids) for response in group.responses)
    return replace(group, responses=responses)


_AT_A_TIME = 1024
"""How many groups are in memory while their tokens are written."""


class Groups(Sequence[TokenGroup]):
    """Groups whose tokens lie on disk: 4 bytes a token, in a file of the temporary folder that has
    no name and goes with the process. A group is read when it is asked for.

    facts: of n groups with k responses each, a structured array [n] with `group_id` (UTF-8),
        `scored` [k] (the scored tokens of each response), `packed` and `longest` (the tokens that
        `packed_tokens` and `longest_sequence` count), `tokens` (`num_tokens`), `images` (their
        number), `weight` and `label`.
    """

    def __init__(self, files: Sequence[mmap.mmap], facts: np.ndarray) -> None:
        self._files, self.facts = files, facts

    @classmethod
    def of(cls, groups: Iterable[TokenGroup]) -> Self:
        """Write the tokens of `groups`, which all have equally many responses.

        Raises ValueError if there are none.
        """
        rest, facts, start = iter(groups), list[np.ndarray](), 0
        with tempfile.TemporaryFile() as file:
            while some := list(islice(rest, _AT_A_TIME)):
                sizes = [file.write(_written(group)) for group in some]
                facts.append(_facts(some))
                facts[-1]["start"] = start + np.cumsum([0, *sizes[:-1]])
                start += sum(sizes)
            if not facts:
                raise ValueError("there are no rows; were all of them dropped when tokenising?")
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls([mapped], np.concatenate(facts))

    @overload
    def __getitem__(self, index: int) -> TokenGroup: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> TokenGroup | Self:
        if isinstance(index, slice):
            return self.take(index)
        place = self.facts[index]
        return _read_group(self._files[place["file"]], int(place["start"]))

    def __len__(self) -> int:
        return len(self.facts)

    def take(self, which: slice | np.ndarray) -> Self:
        """The groups with these indices."""
        return type(self)(self._files, self.facts[which])

    def __add__(self, later: "Groups") -> "Groups":
        facts = np.concatenate([self.facts, later.facts])
        facts["file"][len(self) :] += len(self._files)
        return Groups([*self._files, *later._files], facts)


def joined(*parts: Sequence[TokenGroup]) -> Sequence[TokenGroup]:
    """The groups of all parts, one part after another."""
    first, *rest = [part for part in parts if len(part)] or [()]
    for part in rest:
        if isinstance(first, Groups) and isinstance(part, Groups):
            first = first + part
        else:
            first = [*first, *part]
    return first


def facts_of(groups: Sequence[TokenGroup]) -> np.ndarray:
    """The `Groups.facts` of any groups; `scored` has 0 where a group has fewer responses."""
    return groups.facts if isinstance(groups, Groups) else _facts(groups)


def _facts(groups: Sequence[TokenGroup]) -> np.ndarray:
    ids = [group.group_id.encode() for group in groups]
    most = max((len(group.responses) for group in groups), default=0)
    longest_id = max(map(len, ids), default=0) or 1
    places = [("file", "i2"), ("start", "i8"), ("group_id", f"S{longest_id}")]
    numbers = [(name, "i4") for name in ("packed", "longest", "tokens", "images")]
    others = [("weight", "f8"), ("label", "?"), ("scored", "i4", (most,))]
    facts = [_fact(group, group_id, most) for group, group_id in zip(groups, ids, strict=True)]
    return np.array(facts, np.dtype([*places, *numbers, *others]))


def _fact(group: TokenGroup, group_id: bytes, most: int) -> tuple[Any, ...]:
    prompt, responses = len(group.prompt_ids), group.responses
    fed = [response.num_fed for response in responses]
    scored = [response.num_scored for response in responses] + [0] * (most - len(responses))
    read = prompt + sum(fed), prompt + max(fed), group.num_tokens, len(group.images)
    return 0, 0, group_id, *read, group.weight, bool(group.label), scored


def _written(group: TokenGroup) -> bytes:
    """What `_read_group` reads: a header, and all ids as int32. An id that is not scored is written
    as its complement."""
    assert group.wanted is None
    parts, is_whole = [array("i", group.prompt_ids)], list[bool]()
    for response in group.responses:
        ids, scored = response.ids, response.scored
        if scored is not None:
            ids = [i if of_i else ~i for i, of_i in zip(ids, scored, strict=True)]
        parts.append(array("i", ids))
        is_whole.append(isinstance(response, WholeResponse))
    images = [(str(image.folder), image.sha256) for image in group.images]
    named = [group.row, group.group_id, group.label, group.weight, images, is_whole]
    header = json.dumps([*named, [len(part) for part in parts]]).encode()
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])


def _read_group(file: mmap.mmap, start: int) -> TokenGroup:
    stop = start + 4 + int.from_bytes(file[start : start + 4], "little")
    row, group_id, label, weight, described, is_whole, lengths = json.loads(file[start + 4 : stop])
    ends = zip(lengths, accumulate(lengths), strict=True)
    ids = memoryview(file[stop : stop + 4 * sum(lengths)]).cast("i").tolist()
    prompt, *parts = (tuple(ids[end - n : end]) for n, end in ends)
    responses = map(_read_response, parts, is_whole)
    images = ()
    if described:
        from steps.data.images.images_of_rows import ImageOfRow

        images = tuple(ImageOfRow(Path(folder), sha256) for folder, sha256 in described)
    return TokenGroup(row, group_id, prompt, tuple(responses), label, weight, images)


def _read_response(ids: tuple[int, ...], is_whole: bool) -> TokenResponse:
    if is_whole:
        return WholeResponse(ids)
    if min(ids) >= 0:
        return TokenResponse(ids)
    return TokenResponse(tuple(i if i >= 0 else ~i for i in ids), tuple(i >= 0 for i in ids))


def longest_of(groups: Sequence[TokenGroup]) -> TokenGroup:
    """The first group with the longest sequence."""
    return groups[int(facts_of(groups)["longest"].argmax())]


def longest(groups: Sequence[TokenGroup]) -> tuple[str, int]:
    """The row with the longest sequence, and how many tokens a model reads of that sequence."""
    group = longest_of(groups)
    return group.row, group.longest_sequence


def mismatched(groups: Sequence[TokenGroup]) -> Groups:
    """Each prompt with the responses of a group before it that has another prompt; before the first
    group comes the last one. KTO estimates its baseline from them.

    The k-th of neighbours with one prompt gets the k-th of the neighbours before that have another.
    So every response serves, and not only the last ones to each prompt, which may all be bad. If
    there is one prompt alone, its own responses stand for others.

    The result depends only on the order of all rows, so the reference can score it once.
    """
    every = range(len(groups))
    runs = [list(run) for _, run in groupby(every, key=lambda n: _prompt_of(groups[n]))]
    befores = list[int]()
    for number, run in enumerate(runs):
        # Only the first run may have the prompt of the one before, the last; then it is the next.
        earlier = (runs[number - back] for back in (1, 2)) if len(runs) > 1 else ()
        own = _prompt_of(groups[run[0]])
        other = next((r for r in earlier if _prompt_of(groups[r[0]]) != own), None)
        befores += [run[k - 1] if other is None else other[k % len(other)] for k in range(len(run))]
    return Groups.of(
        replace(group, group_id=_both(group, before), responses=before.responses)
        for before, group in zip((groups[n] for n in befores), groups, strict=True)
    )


def _prompt_of(group: TokenGroup) -> tuple[tuple[int, ...], tuple["ImageOfRow", ...]]:
    """What a response answers: equal tokens may stand for other images."""
    return group.prompt_ids, group.images


def read_pairs(
    records: Iterable[Mapping[str, Any]], vocabulary: int, whole: bool = False
) -> Groups:
    """Groups (chosen, rejected) from records with `row`, `pair_id`, `prompt_ids`, `chosen_ids` and
    `rejected_ids`. Optional fields are `chosen_mask` and `rejected_mask` (without a mask, all
    tokens of the response are scored) and `weight`.

    The mask of the prompt is ignored: tokens that both responses share cancel in a preference.

    Args:
        whole: each group is made `as_whole`.

    Raises ValueError for a missing or empty field and for an id outside `range(vocabulary)`.
    """
    groups = _read(records, vocabulary, "pair_id", ("chosen", "rejected"))
    return Groups.of(map(as_whole, groups) if whole else groups)


def read_unpaired(records: Iterable[Mapping[str, Any]], vocabulary: int) -> Groups:
    """Groups of one labelled response from records with `row`, `completion_id`, `prompt_ids`,
    `completion_ids` and a boolean `label`; `completion_mask` and `weight` are optional.

    Raises ValueError as `read_pairs` does.
    """
    return Groups.of(_read(records, vocabulary, "completion_id", ("completion",)))


def read_demonstrations(records: Iterable[Mapping[str, Any]], vocabulary: int) -> Groups:
    """Groups of one response from records with `row`, `input_ids` and `mask`; or with `row`,
    `prompt_ids` and `response_ids`, of which all are scored. `weight` is optional.

    Raises ValueError as `read_pairs` does.
    """
    return Groups.of(_demonstrations(records, vocabulary))


def _demonstrations(records: Iterable[Mapping[str, Any]], vocabulary: int) -> Iterator[TokenGroup]:
    for number, record in enumerate(records):
        row = str(record.get("row", f"record {number}"))
        if "input_ids" in record:
            prompt, response = _masked_sequence(record, row, vocabulary)
        else:
            prompt = _token_ids(record, "prompt_ids", row, vocabulary)
            response = TokenResponse(_token_ids(record, "response_ids", row, vocabulary))
        weight, images = _weight(record, row), tuple(record.get("images", ()))
        digest = _response_digest(prompt, response)
        yield TokenGroup(row, digest, prompt, (response,), weight=weight, images=images)


def chosen_as_demonstration(record: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a record of pair tokens to a demonstration: prompt and chosen response with their
    masks, and the weight of the pair."""
    return {
        "row": record["row"],
        "weight": record.get("weight"),
        "input_ids": [*record["prompt_ids"], *record["chosen_ids"]],
        "mask": [*record["prompt_mask"], *record["chosen_mask"]],
        "images": record.get("images", ()),
    }


def _read(
    records: Iterable[Mapping[str, Any]], vocabulary: int, id_field: str, sides: tuple[str, ...]
) -> Iterator[TokenGroup]:
    for number, record in enumerate(records):
        row = str(record.get("row", f"record {number}"))
        prompt = _token_ids(record, "prompt_ids", row, vocabulary)
        responses = tuple(
            TokenResponse(
                _token_ids(record, f"{side}_ids", row, vocabulary),
                _mask(record, f"{side}_mask", f"{side}_ids", row),
            )
            for side in sides
        )
        group_id = str(_field(record, id_field, row))
        label = _label(record, row) if sides == ("completion",) else None
        images = tuple(record.get("images", ()))
        weight = _weight(record, row)
        yield TokenGroup(row, group_id, prompt, responses, label, weight, images)


def _masked_sequence(
    record: Mapping[str, Any], row: str, vocabulary: int
) -> tuple[tuple[int, ...], TokenResponse]:
    ids = _token_ids(record, "input_ids", row, vocabulary)
    mask = _mask(record, "mask", "input_ids", row) or (True,) * len(ids)
    first = mask.index(True)
    if first == 0:
        raise ValueError(
            f"row {row!r}: mask is True on the first token, which no token predicts; "
            "drop the row when tokenising"
        )
    rest = mask[first:]
    return ids[:first], TokenResponse(ids[first:], None if all(rest) else rest)


def _both(prompt: TokenGroup, response: TokenGroup) -> str:
    joined = f"{prompt.group_id} with the response of {response.group_id}"
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def _label(record: Mapping[str, Any], row: str) -> bool:
    label = _field(record, "label", row)
    if not isinstance(label, bool):  # the text "false" would be true
        raise ValueError(f"row {row!r}: label is {label!r}; it must be true or false")
    return label


def _weight(record: Mapping[str, Any], row: str) -> float:
    weight = record.get("weight")
    if weight is None:
        return 1.0
    if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise ValueError(f"row {row!r}: weight is {weight!r}; it must be finite and not below 0")
    return float(weight)


def _response_digest(prompt: tuple[int, ...], response: TokenResponse) -> str:
    """A digest of the tokens and of the mask of scored tokens, as 16 hexadecimal digits."""
    digest = hashlib.sha256(np.array([len(prompt), *prompt, *response.ids], np.int64).tobytes())
    digest.update(np.array(response.scored_flags, np.bool_).tobytes())
    return digest.hexdigest()[:16]


def _mask(
    record: Mapping[str, Any], field: str, ids_field: str, row: str
) -> tuple[bool, ...] | None:
    """The mask of a field of ids; None if all of them are scored."""
    mask = record.get(field)
    if mask is None:
        return None
    if len(mask) != len(record[ids_field]) or not any(mask):
        raise ValueError(
            f"row {row!r}: {field} has {len(mask)} values, {sum(mask)} of them True, for the "
            f"{len(record[ids_field])} {ids_field}; it must mark at least one, and have one each"
        )
    return None if all(mask) else tuple(mask)


def _token_ids(record: Mapping[str, Any], field: str, row: str, vocabulary: int) -> tuple[int, ...]:
    ids = tuple(_field(record, field, row))
    if not ids:
        raise ValueError(f"row {row!r}: {field} is empty; drop the row when tokenising")
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        raise ValueError(
            f"row {row!r}: {field} has ids from {min(ids)} to {max(ids)}, but the model's "
            f"vocabulary is 0 to {vocabulary - 1}; tokenise with this model's own tokenizer"
        )
    return ids


def _field(record: Mapping[str, Any], field: str, row: str) -> Any:
    if record.get(field) is None:
        raise ValueError(
            f"row {row!r} has no {field}, only {sorted(record)}; is this a tokens artifact?"
        )
    return record[field]
