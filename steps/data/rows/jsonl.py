"""JSON Lines between steps: one object a line, UTF-8, no NaN; floats keep all their digits."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one record a line, in order."""
    lines = (json.dumps(record, allow_nan=False) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records that :func:`write_json_lines` wrote."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
