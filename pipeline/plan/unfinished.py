"""Scratch folders of earlier attempts, from which a step resumes."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.store.layout import RECORDS, Store

_A_DAY = 86_400.0


class Unfinished:
    """Scratch folders by step and key. It lists the folders of a step name once, and does not
    download remote copies."""

    def __init__(self, store: Store):
        self._store = store
        self._here: dict[str, dict[str, list[Path]]] = {}
        self._kept: dict[str, frozenset[str]] = {}

    def of(
        self, step: str, key: str, changes: Callable[[Path], Sequence[str]] = lambda _: ()
    ) -> tuple[str, float]:
        """The scratch folder from which a step with this key resumes, in words, and the share of
        its work that is left by its last progress. Without such a folder, no words and 1.

        Args:
            changes: the changes, in words, because of which a folder's results are not used.
        """
        folder = max(self._folders(step, key), key=_last_change, default=None)
        if folder is not None and (changed := _last_change(folder)):
            its = f"its scratch of {_when(changed)}"
            if why := changes(folder):
                more = f" and {len(why) - 1} more" if len(why) > 1 else ""
                return f"begins anew, and not from {its}: {why[0]}{more}", 1.0
            reached, left = self._reached(step, key)
            return f"goes on from {its}" + (reached and f" ({reached})"), left
        return "goes on from the copy of its scratch" if key in self._copies(step) else "", 1.0

    def _folders(self, step: str, key: str) -> list[Path]:
        """The scratch folders of a key on this machine: one for each epoch of its lease."""
        if step not in self._here:
            self._here[step] = folders = {}
            with contextlib.suppress(OSError):
                for entry in os.scandir(self._store.scratch_root() / step):
                    folders.setdefault(entry.name.partition("-")[0], []).append(Path(entry.path))
        return self._here[step].get(key, [])

    def _copies(self, step: str) -> frozenset[str]:
        """The keys of which a remote store has copies of scratch folders."""
        if self._store.is_local:
            return frozenset()
        if step not in self._kept:
            folder = self._store.staged_scratch(step, "").rstrip("/")
            with self._store.reading(folder):
                self._kept[step] = frozenset(self._store.objects.folders(folder))
        return self._kept[step]

    def _reached(self, step: str, key: str) -> tuple[str, float]:
        """The last progress of a step, if this machine's disk has it, and the share left."""
        if not self._store.is_local:
            return "", 1.0
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            progress: Any = json.loads(Path(self._store.progress_path(step, key)).read_bytes())
            done, total = progress["done"], progress["total"]
            if total is None:
                return f"{done:g}" if done else "", 1.0
            left = 1 - done / total if total else 0.0
            return f"{done:g} of {total:g}", left if 0 <= left <= 1 else 1.0
        return "", 1.0


def _last_change(folder: Path) -> float:
    """When the newest file of a folder was written; 0 if the folder has no file but records."""
    times = [0.0]
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            if path.is_file() and RECORDS not in path.parts:
                times.append(path.stat().st_mtime)
    return max(times)


def _when(changed: float) -> str:
    form = "%H:%M" if time.time() - changed < _A_DAY else "%F %H:%M"
    return datetime.fromtimestamp(changed).strftime(form)
