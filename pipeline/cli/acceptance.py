"""Accepting that the present code of a step gives the results that earlier code gave.

The code of a step depends on the types of its arguments too, so a step that is called with several
sets of types has as many states of its code: each is accepted for the newest artifact that was made
with such arguments.
"""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.accepted import equal_states
from pipeline.canonical import Json
from pipeline.catalog import Catalog
from pipeline.cli.naming import find
from pipeline.cli.present import NotImportable, PresentCode, argument_types, present_code
from pipeline.errors import TemperError
from pipeline.manifest import Manifest
from pipeline.record import git_state
from pipeline.why import code_changes


@dataclass(frozen=True)
class Candidate:
    """An artifact and what its step's code is now.

    Attributes:
        revived: how many artifacts are not what the present code stands for, and will be.
        older: how many others of the step were made by code that this leaves as it is.
    """

    manifest: Manifest
    present: PresentCode
    revived: int
    older: int

    @property
    def is_equal(self) -> bool:
        return self.revived == 0

    @property
    def changes(self) -> list[str]:
        """What differs, a phrase for each function or version."""
        old, new = self.manifest.made_by, self.present.made_by
        phrases = []
        if "version" in old or "version" in new:
            phrases = [f"{_made_by(old)} → {_made_by(new)}"] if old != new else []
        if self.manifest.code:
            phrases += code_changes(self.manifest.code, self.present.code)
        return phrases or ["the code changed"]


def candidates(catalog: Catalog, step: str, of: str = "") -> list[Candidate]:
    """What there is to accept of a step: one artifact for each set of argument types.

    Args:
        of: the beginning of a key: that artifact and no other.

    Raises:
        TemperError: there is no such artifact, or the step's code cannot be imported.
    """
    newest = find(catalog, f"{step}@{of}")
    history = catalog.history(step)
    chosen: dict[tuple[str, ...], Manifest] = {}
    for manifest in [newest] if of else reversed(history):
        chosen.setdefault(argument_types(manifest), manifest)
    pairs = catalog.store.accepted(step)
    found: list[Candidate] = []
    failures: list[NotImportable] = []
    for manifest in chosen.values():
        try:
            present = present_code(manifest, catalog.store)
        except NotImportable as error:
            failures.append(error)
            continue
        found.append(_candidate(manifest, present, history, pairs))
    if not found:
        raise TemperError(f"{step}: {failures[0]}; run this in the folder of its project")
    return found


def accept(catalog: Catalog, candidate: Candidate) -> None:
    """Record that the present code of a step gives what an artifact of it is.

    Raises:
        TemperError: the store cannot be written.
    """
    manifest = candidate.manifest
    note: dict[str, Any] = {
        "artifact": f"{manifest.step}@{manifest.key}",
        "changes": candidate.changes,
        "time": time.strftime("%FT%TZ", time.gmtime()),
        "host": platform.node(),
        "cwd": os.getcwd(),
        **git_state(),
    }
    catalog.store.accept(manifest.step, manifest.made_by, candidate.present.made_by, note)


def _candidate(
    manifest: Manifest,
    present: PresentCode,
    history: Sequence[Manifest],
    pairs: Sequence[tuple[Json, Json]],
) -> Candidate:
    alike = [m for m in history if argument_types(m) == argument_types(manifest)]
    valid = equal_states(present.made_by, pairs)
    others = {m.key: m.made_by for m in alike if m.made_by not in valid}
    will_be = equal_states(manifest.made_by, pairs)
    revived = [key for key, code in others.items() if code in will_be]
    older = [key for key, code in others.items() if code not in will_be]
    return Candidate(manifest, present, len(revived), len(older))


def _made_by(made_by: dict[str, Json]) -> str:
    return f"version {made_by['version']!r}" if "version" in made_by else "its code as an input"
