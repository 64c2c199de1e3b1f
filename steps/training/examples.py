"""Token ids as training reads them: from rows of a tokens artifact to checked, frozen examples.

A response never lacks a scored token (its mean would be NaN) and a prompt is never empty (the first
response token is predicted from the token before it); both are refused here, by row and field.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Example = TypeVar("Example")


@dataclass(frozen=True)
class TokenSequence:
    """A prompt and the response that is scored after it.

    `scored` says which tokens of the response are; without it, all are. The others (a user's turn
    between two answers, a token that a tokenizer merged with the prompt) are context.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    scored: tuple[bool, ...] | None = None

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def num_scored(self) -> int:
        """How many tokens are scored."""
        return len(self.response_ids) if self.scored is None else sum(self.scored)


@dataclass(frozen=True)
class TokenDemonstration:
    """One example of supervised fine-tuning."""

    row: str
    sequence: TokenSequence


@dataclass(frozen=True)
class TokenPair:
    """One preference: two responses to one prompt. Equal `pair_id`s mean equal tokens."""

    row: str
    pair_id: str
    chosen: TokenSequence
    rejected: TokenSequence

    def __len__(self) -> int:
        """The tokens a forward over both sequences reads."""
        return len(self.chosen) + len(self.rejected)


def read_pairs(records: Iterable[Mapping[str, Any]], vocabulary: int) -> list[TokenPair]:
    """Pairs from records with `row`, `pair_id`, `prompt_ids`, and `chosen_ids` and `rejected_ids`
    with their masks (`chosen_mask`, `rejected_mask`; without one, all of a response is scored).

    A mask over the prompt is not read: what both sides share cancels in a preference.

    Raises ValueError for a missing or empty field and for an id outside `range(vocabulary)`.
    """
    pairs = []
    for record in records:
        row = str(record.get("row", f"record {len(pairs)}"))
        prompt = _token_ids(record, "prompt_ids", row, vocabulary)
        chosen, rejected = (
            TokenSequence(
                prompt,
                _token_ids(record, f"{side}_ids", row, vocabulary),
                _mask(record, f"{side}_mask", f"{side}_ids", row),
            )
            for side in ("chosen", "rejected")
        )
        pairs.append(TokenPair(row, str(_field(record, "pair_id", row)), chosen, rejected))
    return _not_empty(pairs)


def read_demonstrations(
    records: Iterable[Mapping[str, Any]], vocabulary: int
) -> list[TokenDemonstration]:
    """Demonstrations from records with `row`, `input_ids` and their `mask`; or with `prompt_ids`
    and `response_ids`, all of which is scored.

    Raises ValueError as `read_pairs` does.
    """
    demonstrations = []
    for record in records:
        row = str(record.get("row", f"record {len(demonstrations)}"))
        if "input_ids" in record:
            sequence = _masked_sequence(record, row, vocabulary)
        else:
            sequence = TokenSequence(
                _token_ids(record, "prompt_ids", row, vocabulary),
                _token_ids(record, "response_ids", row, vocabulary),
            )
        demonstrations.append(TokenDemonstration(row, sequence))
    return _not_empty(demonstrations)


def chosen_as_demonstration(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of pair tokens as one to imitate: the prompt and the chosen side, with masks."""
    return {
        "row": record["row"],
        "input_ids": [*record["prompt_ids"], *record["chosen_ids"]],
        "mask": [*record["prompt_mask"], *record["chosen_mask"]],
    }


def _masked_sequence(record: Mapping[str, Any], row: str, vocabulary: int) -> TokenSequence:
    ids = _token_ids(record, "input_ids", row, vocabulary)
    mask = _mask(record, "mask", "input_ids", row) or (True,) * len(ids)
    first = mask.index(True)
    if first == 0:
        raise ValueError(
            f"row {row!r}: mask is True on the first token, which no token predicts; "
            "drop the row when tokenising"
        )
    rest = mask[first:]
    return TokenSequence(ids[:first], ids[first:], None if all(rest) else rest)


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


def _not_empty(examples: list[Example]) -> list[Example]:
    if not examples:
        raise ValueError("there are no rows; were all of them dropped when tokenising?")
    return examples
