"""Examples for training and scoring: rows of a tokens artifact as checked, frozen token ids.

Every example is a `TokenGroup`: a prompt and k responses to it. A demonstration or a labelled
completion has one response, a preference pair two (the chosen one first), rollouts have more. Every
response has at least one scored token, as its mean would be NaN otherwise. The errors here name the
row and the field.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

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


def longest(groups: Sequence[TokenGroup]) -> tuple[str, int]:
    """The row with the longest sequence, and how many tokens a model reads of that sequence."""
    group = max(groups, key=lambda group: group.longest_sequence)
    return group.row, group.longest_sequence


def mismatched(groups: Sequence[TokenGroup]) -> list[TokenGroup]:
    """Each prompt with the responses of a group before it that has another prompt; before the first
    group comes the last one. KTO estimates its baseline from them.

    The k-th of neighbours with one prompt gets the k-th of the neighbours before that have another.
    So every response serves, and not only the last ones to each prompt, which may all be bad. If
    there is one prompt alone, its own responses stand for others.

    The result depends only on the order of all rows, so the reference can score it once.
    """
    runs = [list(run) for _, run in groupby(groups, key=_prompt_of)]
    befores = list[TokenGroup]()
    for number, run in enumerate(runs):
        # Only the first run may have the prompt of the one before, the last; then it is the next.
        earlier = (runs[number - back] for back in (1, 2)) if len(runs) > 1 else ()
        other = next((r for r in earlier if _prompt_of(r[0]) != _prompt_of(run[0])), None)
        befores += [run[k - 1] if other is None else other[k % len(other)] for k in range(len(run))]
    return [
        replace(group, group_id=_both(group, before), responses=before.responses)
        for before, group in zip(befores, groups, strict=True)
    ]


def _prompt_of(group: TokenGroup) -> tuple[tuple[int, ...], tuple["ImageOfRow", ...]]:
    """What a response answers: equal tokens may stand for other images."""
    return group.prompt_ids, group.images


def read_pairs(records: Iterable[Mapping[str, Any]], vocabulary: int) -> list[TokenGroup]:
    """Groups (chosen, rejected) from records with `row`, `pair_id`, `prompt_ids`, `chosen_ids` and
    `rejected_ids`. Optional fields are `chosen_mask` and `rejected_mask` (without a mask, all
    tokens of the response are scored) and `weight`.

    The mask of the prompt is ignored: tokens that both responses share cancel in a preference.

    Raises ValueError for a missing or empty field and for an id outside `range(vocabulary)`.
    """
    return _read(records, vocabulary, "pair_id", ("chosen", "rejected"))


def read_unpaired(records: Iterable[Mapping[str, Any]], vocabulary: int) -> list[TokenGroup]:
    """Groups of one labelled response from records with `row`, `completion_id`, `prompt_ids`,
    `completion_ids` and a boolean `label`; `completion_mask` and `weight` are optional.

    Raises ValueError as `read_pairs` does.
    """
    return _read(records, vocabulary, "completion_id", ("completion",))


def read_demonstrations(records: Iterable[Mapping[str, Any]], vocabulary: int) -> list[TokenGroup]:
    """Groups of one response from records with `row`, `input_ids` and `mask`; or with `row`,
    `prompt_ids` and `response_ids`, of which all are scored. `weight` is optional.

    Raises ValueError as `read_pairs` does.
    """
    groups = []
    for record in records:
        row = str(record.get("row", f"record {len(groups)}"))
        if "input_ids" in record:
            prompt, response = _masked_sequence(record, row, vocabulary)
        else:
            prompt = _token_ids(record, "prompt_ids", row, vocabulary)
            response = TokenResponse(_token_ids(record, "response_ids", row, vocabulary))
        weight, images = _weight(record, row), tuple(record.get("images", ()))
        digest = _response_digest(prompt, response)
        groups.append(TokenGroup(row, digest, prompt, (response,), weight=weight, images=images))
    return _not_empty(groups)


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
) -> list[TokenGroup]:
    groups = []
    for record in records:
        row = str(record.get("row", f"record {len(groups)}"))
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
        groups.append(TokenGroup(row, group_id, prompt, responses, label, weight, images))
    return _not_empty(groups)


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


def _not_empty(groups: list[TokenGroup]) -> list[TokenGroup]:
    if not groups:
        raise ValueError("there are no rows; were all of them dropped when tokenising?")
    return groups
