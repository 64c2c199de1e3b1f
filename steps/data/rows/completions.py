"""``completions.jsonl``: prompts with a model's completions, one record a line.

Files that other tools wrote are adopted as completions, and as a reward model's scores of them. So
whatever reads them checks their fields: a text in place of a list would be a completion for each
letter, and a NaN among scores would lose to every number that it is compared with.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from steps.data.rows.jsonl import read_json_lines

Records = list[dict[str, Any]]


def read_completions(folder: str | os.PathLike[str], *needed: str) -> Records:
    """The records of a folder's ``completions.jsonl``, with ``row``, ``completions`` and what is
    `needed` besides.

    Raises:
        ValueError: a record lacks a field or has one of another form, or two have one row.
    """
    file = Path(folder) / "completions.jsonl"
    records = read_json_lines(file)
    require_completions(records, file, *needed)
    return records


def require_completions(records: Records, file: Path, *needed: str) -> None:
    """Raise ValueError, which names the file and the row, for what `read_completions` refuses."""
    for number, record in enumerate(records, 1):
        where = f"{file}: record {number}, row {record.get('row')!r},"
        for name in ("row", "completions", *needed):
            form, holds = _FORMS[name]
            if name not in record:
                raise ValueError(f"{where} has no {name}; give {form}")
            if not holds(record[name], record):
                raise ValueError(f"{where} has the {name} {record[name]!r:.80}; give {form}")
    require_once(records, file, "row")


def require_once(records: Sequence[Mapping[str, Any]], file: Path, *names: str) -> None:
    """Raise ValueError if a record of a file lacks one of the named fields, or if two have the same
    values in all of them."""
    for number, record in enumerate(records, 1):
        if lacking := [name for name in names if name not in record]:
            raise ValueError(f"{file}: record {number} has no {lacking[0]}, which says whose it is")
    found = Counter(tuple(repr(record[name]) for name in names) for record in records)
    if twice := next((key for key, count in found.items() if count > 1), None):
        known = ", ".join(f"{name} {value}" for name, value in zip(names, twice, strict=True))
        raise ValueError(
            f"{file}: {found[twice]} records have the {known}, and would count as often; leave one"
        )


def are_numbers(given: Any, count: int, or_null: bool = False) -> bool:
    """Whether something is a list of so many finite numbers (or None, with `or_null`)."""
    return (
        isinstance(given, list)
        and len(given) == count
        and all(
            (or_null and number is None) or (type(number) in (int, float) and math.isfinite(number))
            for number in given
        )
    )


def _are_texts(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(text, str) for text in given)


def _are_messages(given: Any) -> bool:
    return isinstance(given, list) and all(
        isinstance(turn, dict) and _are_texts([turn.get("role"), turn.get("content")])
        for turn in given
    )


_FORMS: Mapping[str, tuple[str, Callable[[Any, Mapping[str, Any]], bool]]] = {
    "row": ("the id of the prompt, a text or a whole number", lambda of, _: type(of) in (str, int)),
    "prompt": (
        "a list of messages, each with a role and a content as texts",
        lambda of, _: _are_messages(of),
    ),
    "completions": ("a list of texts", lambda of, _: _are_texts(of)),
    "finish": (
        "a text for each completion: 'stop', or 'length' if it was cut",
        lambda of, record: _are_texts(of) and len(of) == len(record["completions"]),
    ),
    "scores": (
        "a finite number, or null, for each completion",
        lambda of, record: are_numbers(of, len(record["completions"]), or_null=True),
    ),
}
"""Of each field, what it holds, and whether a value does."""
