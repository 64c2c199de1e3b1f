"""Records that the present code of a step gives the same results as earlier code.

The code in a step's key includes the types of its arguments. So a step that is called with
arguments of different types has several states of code. Each state is accepted for the newest
artifact that was made with these types.
"""

import contextlib
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pipeline.cli.naming import find
from pipeline.cli.present import NotImportable, PresentCode, argument_types, present_code
from pipeline.dag.canonical import Json
from pipeline.errors import TemperError
from pipeline.observed.discovery import Present, state_of_discovered
from pipeline.plan.rerun_reasons import code_changes
from pipeline.running.record import git_state
from pipeline.store.accepted import Acceptance, acceptances, equal_states
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.runs import newest_runs


@dataclass(frozen=True)
class Candidate:
    """An artifact, with the present code of its step.

    Attributes:
        revived: how many artifacts are invalid now and become valid if the code is accepted.
        older: how many artifacts of the step were made by other code and stay invalid.
        outdated: the discovered dependencies that have changed, in words.
        discovered: their earlier and their present state, to be recorded as equivalent.
    """

    manifest: Manifest
    present: PresentCode
    revived: int
    older: int
    outdated: Sequence[str]
    discovered: tuple[Json, Json]

    @property
    def is_equal(self) -> bool:
        return self.revived == 0

    @property
    def changes(self) -> list[str]:
        """The differences, a phrase for each function or version."""
        old, new = self.manifest.made_by, self.present.made_by
        phrases = []
        if "version" in old or "version" in new:
            phrases = [f"{_made_by(old)} → {_made_by(new)}"] if old != new else []
        if self.manifest.code:
            phrases += code_changes(self.manifest.code, self.present.code)
        phrases += self.outdated
        return phrases or ["the code changed"]

    @property
    def edits(self) -> frozenset[tuple[str, str | None, str | None]]:
        """Each function that differs: its name without module, its digest before, its digest
        now."""
        old, new = _by_own_name(self.manifest.code), _by_own_name(self.present.code)
        return frozenset(
            (name, before, now)
            for name in old.keys() | new.keys()
            for before, now in zip_longest(
                sorted(old.get(name, set()) - new.get(name, set())),
                sorted(new.get(name, set()) - old.get(name, set())),
            )
        )


def _by_own_name(code: Mapping[str, str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for unit, digest in code.items():
        found.setdefault(unit.partition(":")[2], set()).add(digest)
    return found


def with_the_same_change(catalog: Catalog, chosen: Sequence[Candidate]) -> list[Candidate]:
    """Candidates of other steps whose code has no changes but those of the chosen candidates.

    These are steps of the newest run; or of the whole store, if the chosen steps are not in that
    run.
    """
    edits = frozenset(edit for candidate in chosen for edit in candidate.edits)
    names = {candidate.manifest.step for candidate in chosen}
    newest = next(newest_runs(catalog.store), None)
    steps = {str(entry["step"]) for entry in newest.steps} if newest else set()
    if not names <= steps:
        steps = set(catalog.store.steps())
    found: list[Candidate] = []
    for step in sorted(steps - names):
        with contextlib.suppress(TemperError):  # skip a step whose code cannot be imported
            found += candidates(catalog, step)
    return [c for c in found if not c.is_equal and c.edits and c.edits <= edits]


def candidates(catalog: Catalog, step: str, of: str = "") -> list[Candidate]:
    """The candidates of a step: one artifact for each set of argument types.

    Args:
        of: the beginning of a key, to choose only that artifact.

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
    """Record that the present code of a step gives the result that an artifact holds.

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
    if manifest.made_by != candidate.present.made_by:
        catalog.store.accept(manifest.step, manifest.made_by, candidate.present.made_by, note)
    if candidate.outdated:
        catalog.store.accept(manifest.step, *candidate.discovered, note)


def accepted_before(catalog: Catalog, step: str, of: str = "") -> list[Acceptance]:
    """Earlier acceptances for a step, oldest first.

    Args:
        of: the beginning of a key, to choose only acceptances for that artifact.

    Raises:
        TemperError: there is none.
    """
    found = [
        acceptance
        for acceptance in acceptances(catalog.store, step)
        if str(acceptance.note.get("artifact", "")).startswith(f"{step}@{of}") or not of
    ]
    if not found:
        raise TemperError(f"nothing was accepted of {step}{'@' if of else ''}{of}")
    return sorted(found, key=lambda acceptance: str(acceptance.note.get("time")))


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
    now, home = Present(), present.home
    stands = "version" in present.made_by  # a version replaces discovered dependencies too
    outdated = [] if stands else now.changes(home, manifest.discovered, lambda: pairs)
    if outdated:
        same = (m.key for m in alike if m.discovered == manifest.discovered)
        revived = list({*revived, *(key for key in same if key not in older)})
    states = (manifest.discovered, now.state(home, manifest.discovered))
    was, now_is = map(state_of_discovered, states)
    return Candidate(manifest, present, len(revived), len(older), outdated, (was, now_is))


def _made_by(made_by: dict[str, Json]) -> str:
    return f"version {made_by['version']!r}" if "version" in made_by else "its code as an input"
