"""What users accepted: traces that count for artifacts beside the traces of their own."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.store.layout import Store


@dataclass(frozen=True)
class Acceptance:
    """A record of an accepted trace; ``note`` is what it tells people."""

    path: str
    note: Mapping[str, Any]


def acceptances(store: Store, step: str) -> list[Acceptance]:
    """The acceptances for a step, in no order. Damaged records are included; they accept nothing.

    Raises:
        TemperError: the store cannot be read.
    """
    found = []
    folder = f"{store.root}/accepted/{step}"
    for entry in store.listing(folder):
        note: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            note = json.loads(store.read(f"{folder}/{entry.name}") or b"")
        found.append(Acceptance(f"{folder}/{entry.name}", note if isinstance(note, dict) else {}))
    return found


def withdraw(store: Store, acceptance: Acceptance) -> None:
    """Delete an acceptance: artifacts that are valid only because of it become invalid."""
    store.objects.remove(acceptance.path)
