"""Reads the metrics log of a step that still runs, up to its last checkpoint."""

import contextlib
from pathlib import Path
from typing import Any

from pipeline.show.artifact_handle import json_records
from pipeline.store.layout import Store

METRICS = "metrics.jsonl"
"""The name of a step's log, in its artifact and in each checkpoint in its scratch folder."""


def unfinished_log(store: Store, step: str, key: str) -> list[dict[str, Any]]:
    """The records of the longest log in a step's scratch folder, without a half-written last
    line."""
    folders = (store.scratch_root() / step).glob(f"{key}*")
    logs = (_records(path) for folder in folders for path in folder.rglob(METRICS))
    return max(logs, key=len, default=[])


def _records(path: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(OSError):  # deleted meanwhile
        return json_records(path.read_bytes())
    return []
