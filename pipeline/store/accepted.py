"""Which states of a step's code count as equal: what people accepted, and what follows from that.

A *state* is what stands for the code in a recipe, ``made_by``. Each acceptance names two of them
(:meth:`pipeline.store.layout.Store.accept`) and holds in both directions and by way of others:
where a equals b and b equals c, a equals c.
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
    """A record that two states are equal; ``note`` is what was kept with it for people."""

    path: str
    note: Mapping[str, Any]


def acceptances(store: Store, step: str) -> list[Acceptance]:
    """What was accepted of a step, in no order; damaged records too, which accept nothing.

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
    """Forget an acceptance: what is valid by it alone will be made again."""
    store.objects.remove(acceptance.path)


def equal_states(made_by: Json, pairs: Sequence[tuple[Json, Json]]) -> list[Json]:
    """A state, then every state that is accepted as equal to it, the most direct ones first."""
    equal = [made_by]
    for known in equal:  # which grows meanwhile
        for one, other in pairs:
            linked = other if one == known else one if other == known else None
            if linked is not None and linked not in equal:
                equal.append(linked)
    return equal
