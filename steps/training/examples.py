"""Token ids as training reads them: from rows of a tokens artifact to checked, frozen examples.

A response is never empty (its mean would be NaN) and neither is a prompt (the first response token
is predicted from the token before it); both are refused here, by row and field.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Example = TypeVar("Example")


@dataclass(frozen=True)
class TokenSequence:
    """A prompt and the response that is scored after it."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


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
    """Pairs from records with `row`, `pair_id`, `prompt_ids`, `chosen_ids` and `rejected_ids`.

    Raises ValueError for a missing or empty field and for an id outside `range(vocabulary)`.
    """
    pairs = []
    for record in records:
        row = str(record.get("row", f"record {len(pairs)}"))
        prompt = _token_ids(record, "prompt_ids", row, vocabulary)
        chosen = _token_ids(record, "chosen_ids", row, vocabulary)
        rejected = _token_ids(record, "rejected_ids", row, vocabulary)
        pair_id = str(_field(record, "pair_id", row))
        pairs.append(
            TokenPair(row, pair_id, TokenSequence(prompt, chosen), TokenSequence(prompt, rejected))
        )
    return _not_empty(pairs)


def read_demonstrations(
    records: Iterable[Mapping[str, Any]], vocabulary: int
) -> list[TokenDemonstration]:
    """Demonstrations from records with `row`, `prompt_ids` and `response_ids`.

    Raises ValueError as `read_pairs` does.
    """
    demonstrations = []
    for record in records:
        row = str(record.get("row", f"record {len(demonstrations)}"))
        prompt = _token_ids(record, "prompt_ids", row, vocabulary)
        response = _token_ids(record, "response_ids", row, vocabulary)
        demonstrations.append(TokenDemonstration(row, TokenSequence(prompt, response)))
    return _not_empty(demonstrations)


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
