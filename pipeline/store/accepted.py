"""States of a step's code that are equivalent: those that users accepted, and what follows.

A *state* is the entry for the code in a recipe, ``made_by``. Each acceptance names two states
(:meth:`pipeline.store.layout.Store.accept`). Equivalence is symmetric and transitive: if a equals b
and b equals c, then a equals c.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.dag.canonical import Json
from pipeline.store.layout import Store


@dataclass(frozen=True)
class Acceptance:
    """A record that two states are equivalent; ``note`` is additional information for people."""

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


def equal_states(made_by: Json, pairs: Sequence[tuple[Json, Json]]) -> list[Json]:
    """A state, followed by all equivalent states, the most direct ones first."""
    equal = [made_by]
    for known in equal:  # the list grows during the loop
        for one, other in pairs:
            linked = other if one == known else one if other == known else None
            if linked is not None and linked not in equal:
                equal.append(linked)
    return equal
