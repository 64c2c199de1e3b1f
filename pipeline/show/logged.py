"""What a step has logged: of one that is at work, as far as its last checkpoint."""

import json
from pathlib import Path
from typing import Any

from pipeline.store.layout import Store

METRICS = "metrics.jsonl"
"""A step's log: in its artifact, and with each checkpoint in its scratch."""


def unfinished_log(store: Store, step: str, key: str) -> list[dict[str, Any]]:
    """The longest log in a step's scratch, line by line as far as it is whole."""
    folders = (store.scratch_root() / step).glob(f"{key}*")
    logs = (_records(path) for folder in folders for path in folder.rglob(METRICS))
    return max(logs, key=len, default=[])


def _records(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        for line in path.read_bytes().splitlines():
            found.append(json.loads(line))
    except (OSError, ValueError):  # half written, or gone: the next look sees more
        pass
    return [record for record in found if isinstance(record, dict)]
