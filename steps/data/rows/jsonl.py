"""JSON Lines between steps: one object a line, UTF-8, no NaN; floats keep all their digits.

Files of other tools are read too: their lines may end as on Windows, and texts may hold U+2028,
which is the end of a line for Python but not for JSON.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Never

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def write_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one record a line, in order."""
    lines = (json.dumps(record, allow_nan=False) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file like those of :func:`write_json_lines`; empty lines are none.

    Raises:
        ValueError: a line, which the message names, is no object of JSON, or has a NaN or text that
            is not valid Unicode.
    """
    lines = path.read_bytes().decode("utf-8-sig", "surrogateescape").split("\n")
    return [_record(line, f"{path}: line {n}") for n, line in enumerate(lines, 1) if line.strip()]


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refuse)
        line.encode()
        if _SURROGATE.search(line):  # only then may it spell half a character
            json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} has text that is not valid Unicode, {error.object[error.start]!r}; write it "
            "anew as UTF-8"
        ) from error
    except ValueError as error:
        raise ValueError(f"{where} is not a record of JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{where} is not a record of JSON, but {line:.40}; write {{...}} a line")
    return record


def _refuse(name: str) -> Never:
    raise ValueError(f"{name} is no number of JSON; write null, or leave the record out")
