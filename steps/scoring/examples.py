"""Token ids as training reads them: from rows of a tokens artifact to checked, frozen examples.

Every example is a `TokenGroup`, a prompt and the k responses to it: one for a demonstration or a
labelled completion, two for a preference pair (the chosen one first), more for rollouts. A response
never lacks a scored token, as its mean would be NaN; that is refused here, by row and field.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from steps.data.images.of_tokens import ImageOfRow


@dataclass(frozen=True)
class TokenResponse:
    """A response. `scored` says which of its tokens are; without it, all are. The others (a user's
    turn between two answers, a token that a tokenizer merged with the prompt) are context."""

    ids: tuple[int, ...]
    scored: tuple[bool, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_scored(self) -> int:
        """How many tokens are scored."""
        return len(self.ids) if self.scored is None else sum(self.scored)

    @property
    def scored_flags(self) -> tuple[bool, ...]:
        """`scored`, spelt out."""
        return (True,) * len(self.ids) if self.scored is None else self.scored

    @property
    def num_fed(self) -> int:
        """How many tokens a model has to read: those before the last scored one."""
        if self.scored is None:
            return len(self.ids) - 1
        return len(self.ids) - 1 - self.scored[::-1].index(True)

    @property
    def readouts(self) -> Iterator[tuple[int, int]]:
        """Where something is read off a model, and for which token: how many tokens of the response
        come before it, and its id."""
        scored = zip(self.scored_flags, enumerate(self.ids), strict=True)
        return (place for is_scored, place in scored if is_scored)

    def after_nothing(self) -> "TokenResponse":
        """The response without a prompt before it: nothing predicts its first token."""
        return replace(self, scored=(False, *self.scored_flags[1:]))


@dataclass(frozen=True)
class WholeResponse(TokenResponse):
    """A response that gets one score, as a whole: it is read off the last token, which a model is
    fed too. A mask says nothing here.

    A prompt before whole responses has a segment of its own in a pack, so that on a CPU the score
    of a response does not depend, in any bit, on the other responses to the prompt.
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
"""In place of a token that is scored, where none is; no vocabulary has it."""


@dataclass(frozen=True)
class TokenGroup:
    """A prompt and the responses that share it. Equal `group_id`s mean equal tokens and masks.

    The prompt may be empty; nothing predicts the first token of a response then, and it is not
    scored. `label`: the verdict on the response of an unpaired row. `weight`: what the group counts
    for in its loss. `images`: those that the prompt has placeholders for, in order.

    Raises ValueError, naming the row, for a response without a scored token.
    """

    row: str
    group_id: str
    prompt_ids: tuple[int, ...]
    responses: tuple[TokenResponse, ...]
    label: bool | None = None
    weight: float = 1.0
    images: tuple["ImageOfRow", ...] = ()

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
        """The tokens of the group's full sequences, the prompt counted with each response."""
        return sum(len(self.prompt_ids) + len(response) for response in self.responses)

    @property
    def packed_tokens(self) -> int:
        """The tokens that one forward over the group reads: the prompt once, no token that predicts
        nothing."""
        return len(self.prompt_ids) + sum(response.num_fed for response in self.responses)

    @property
    def longest_sequence(self) -> int:
        """How many tokens a model reads of the longest of the full sequences."""
        return len(self.prompt_ids) + max(response.num_fed for response in self.responses)


def as_whole(group: TokenGroup) -> TokenGroup:
    """The group with one score for each response, read off the response's last token."""
    responses = tuple(WholeResponse(response.ids) for response in group.responses)
    return replace(group, responses=responses)


def longest(groups: Sequence[TokenGroup]) -> tuple[str, int]:
    """The row with the longest sequence, and how many tokens a model reads of that."""
    group = max(groups, key=lambda group: group.longest_sequence)
    return group.row, group.longest_sequence


def mismatched(groups: Sequence[TokenGroup]) -> list[TokenGroup]:
    """Each prompt with the responses of the group before it, the first with those of the last: what
    KTO finds its baseline on.

    A function of the order of all rows alone, so the reference can score them once.
    """
    return [
        replace(group, group_id=_both(group, before), responses=before.responses)
        for before, group in zip([groups[-1], *groups[:-1]], groups, strict=True)
    ]


def read_pairs(records: Iterable[Mapping[str, Any]], vocabulary: int) -> list[TokenGroup]:
    """Groups (chosen, rejected) from records with `row`, `pair_id`, `prompt_ids`, and `chosen_ids`
    and `rejected_ids` with their masks (`chosen_mask`, `rejected_mask`; without one, all of a
    response is scored), and perhaps a `weight`.

    A mask over the prompt is not read: what both sides share cancels in a preference.

    Raises ValueError for a missing or empty field and for an id outside `range(vocabulary)`.
    """
    return _read(records, vocabulary, "pair_id", ("chosen", "rejected"))


def read_unpaired(records: Iterable[Mapping[str, Any]], vocabulary: int) -> list[TokenGroup]:
    """Groups of one labelled response from records with `row`, `completion_id`, `prompt_ids`,
    `completion_ids`, perhaps `completion_mask` and `weight`, and a boolean `label`.

    Raises ValueError as `read_pairs` does.
    """
    return _read(records, vocabulary, "completion_id", ("completion",))


def read_demonstrations(records: Iterable[Mapping[str, Any]], vocabulary: int) -> list[TokenGroup]:
    """Groups of one response from records with `row`, `input_ids` and their `mask`; or with
    `prompt_ids` and `response_ids`, all of which is scored; and perhaps a `weight`.

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
    """A record of pair tokens as one to imitate: the prompt and the chosen side, with masks, and
    the weight that the pair has."""
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
    """16 hexadecimal digits that follow from the tokens and from which of them are scored."""
    digest = hashlib.sha256(np.array([len(prompt), *prompt, *response.ids], np.int64).tobytes())
    digest.update(np.array(response.scored_flags, np.bool_).tobytes())
    return digest.hexdigest()[:16]


def _mask(
    record: Mapping[str, Any], field: str, ids_field: str, row: str
) -> tuple[bool, ...] | None:
    """The mask of a field of ids; nothing where all of them are scored."""
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
