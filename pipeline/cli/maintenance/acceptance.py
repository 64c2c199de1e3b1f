"""Records that the present code of a step gives the same results as earlier code.

A user who accepts speaks of an edit. So what is accepted are artifacts that the edit made invalid:
those that were valid together before it, in one run, and those that differ in nothing else.
"""

import contextlib
import itertools
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.cli.maintenance.accepted import Acceptance, acceptances
from pipeline.cli.step_lookup import NotImportable, home_in, project_with
from pipeline.observed.discovery import Home, Present
from pipeline.observed.neutral import accepted_trace, neutral_trace
from pipeline.running.record import git_state
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Discovered, Manifest
from pipeline.store.names.naming import find
from pipeline.store.runs import FINISHED_STATES, newest_runs

_MOST_RUNS = 50
"""The most runs to search for the one that an artifact was part of."""


@dataclass(frozen=True)
class Outdated:
    """An artifact that is invalid because of changes.

    Attributes:
        changes: the changes, in words.
        edits: each change of a unit of code, without its module, or of a file: the name, and the
            digests before and now.
        now: its trace, with the present digests.
        neutral: the trace of the present code, if only names, places, documentation, hints or
            messages seem to differ.
    """

    manifest: Manifest
    home: Home
    changes: tuple[str, ...]
    edits: frozenset[tuple[str, str | None, str | None]]
    now: Discovered
    neutral: Discovered | None


def outdated(catalog: Catalog, step: str, of: str = "") -> list[Outdated]:
    """The artifacts of a step that are invalid because of changes, newest first; of each call the
    latest one, if none of it is valid.

    Args:
        of: the beginning of a key, to choose only that artifact.

    Raises:
        TemperError: there is no such artifact, or its step function is not found.
    """
    newest = find(catalog, f"{step}@{of}")
    if newest.made_by:  # an edit reruns nothing
        return []
    project, present = project_with(catalog.store, step), Present()
    home_in(project, newest)  # or raise: it is not found
    accepted = catalog.store.accepted(step)
    found: dict[Any, Outdated | None] = {}  # `None` if it is valid
    for manifest in [newest] if of else reversed(catalog.history(step)):
        with contextlib.suppress(NotImportable):
            home = home_in(project, manifest)
            was, now = present.nearest(home, manifest.discovered, lambda: accepted)
            changes, call = tuple(present.differences(home, was, now)), (manifest.key, home.entry())
            if was == now or manifest.made_by:
                found[call] = None
            elif call not in found:
                neutral = neutral_trace(home, manifest.discovered, present)
                edits = _edits(was, now)
                found[call] = Outdated(manifest, home, changes, edits, now, neutral)
    return [one for one in found.values() if one is not None]


def by_one_edit(catalog: Catalog, found: Sequence[Outdated]) -> list[Outdated]:
    """Of the invalid artifacts of a step: the newest, those that were valid together with it, and
    those with no other changes than these have."""
    newest = found[0].manifest.attempt
    together = {newest}
    for run in itertools.islice(newest_runs(catalog.store), _MOST_RUNS):
        used = {s.get("attempt") for s in run.steps if s.get("state") in FINISHED_STATES}
        if newest in used:
            together |= used
            break
    edits = {edit for one in found if one.manifest.attempt in together for edit in one.edits}
    return [one for one in found if one.manifest.attempt in together or one.edits <= edits]


def with_the_same_change(catalog: Catalog, chosen: Sequence[Outdated]) -> list[Outdated]:
    """Artifacts of other steps with no other changes than those of the chosen artifacts.

    These are steps of the newest run; or of the whole store, if the chosen steps are not in that
    run.
    """
    edits = {edit for one in chosen for edit in one.edits}
    names = {one.manifest.step for one in chosen}
    newest = next(newest_runs(catalog.store), None)
    steps = {str(entry["step"]) for entry in newest.steps} if newest else set[str]()
    if not names <= steps:
        steps = set(catalog.store.steps())
    found: list[Outdated] = []
    for step in sorted(steps - names):
        with contextlib.suppress(TemperError):  # skip a step whose code is not found
            found += outdated(catalog, step)
    return [one for one in found if one.edits <= edits]


def looking_neutral(catalog: Catalog, steps: Sequence[str]) -> list[Outdated]:
    """Artifacts whose code only seems to differ in names, places, documentation, hints or messages:
    of these steps, or of all steps of the store."""
    found: list[Outdated] = []
    for step in steps or catalog.store.steps():
        with contextlib.suppress(*(() if steps else (TemperError,))):
            found += outdated(catalog, step)
    return [one for one in found if one.neutral is not None]


def accept(catalog: Catalog, chosen: Iterable[Outdated]) -> None:
    """Record that the present code gives the results that artifacts hold.

    Raises:
        TemperError: the present code is no valid Python, or the store cannot be written.
    """
    by_state = {one.manifest.discovered.state: one for one in chosen}
    found = by_state.values()
    traces = [(one, one.neutral or accepted_trace(one.home, one.now)) for one in found]
    about = {"time": time.strftime("%FT%TZ", time.gmtime()), "host": platform.node()}
    about |= {"cwd": os.getcwd(), **git_state()}
    for one, trace in traces:
        made = one.manifest
        note: dict[str, Any] = {"artifact": f"{made.step}@{made.key}", "changes": one.changes}
        catalog.store.accept(made.step, made.discovered.state, trace, note | about)


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


def _edits(was: Discovered, now: Discovered) -> frozenset[tuple[str, str | None, str | None]]:
    def differing(one: Any, other: Any, name_of: Any = str) -> Iterable[Any]:
        for name in one.keys() | other.keys():
            if one.get(name) != other.get(name):
                yield name_of(name), one.get(name), other.get(name)

    return frozenset(
        (
            *differing(was.code, now.code, lambda unit: unit.partition(":")[2]),
            *differing(was.files, now.files),
            *differing(was.folders, now.folders),
            *((name, None, None) for name in {*was.entry} ^ {*now.entry}),
        )
    )
