"""Records that the present code of a step gives the same results as earlier code."""

import contextlib
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.cli.naming import find
from pipeline.cli.present import home_in, project_with
from pipeline.errors import TemperError
from pipeline.observed.discovery import Accepted, Home, Present
from pipeline.observed.neutral import accepted_trace, neutral_trace
from pipeline.running.record import git_state
from pipeline.store.accepted import Acceptance, acceptances
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Discovered, Manifest
from pipeline.store.runs import newest_runs


@dataclass(frozen=True)
class Candidate:
    """An artifact whose dependencies may have changed.

    Attributes:
        revived: how many artifacts become valid if the change is accepted; 0 without a change.
        outdated: the dependencies that have changed, in words.
        trace: the trace of the present code, to be recorded as accepted.
        looks_neutral: whether only names, places, documentation, hints or messages seem to differ.
    """

    manifest: Manifest
    revived: int
    outdated: Sequence[str]
    trace: Discovered
    looks_neutral: bool = False

    @property
    def is_equal(self) -> bool:
        return self.revived == 0

    @property
    def edits(self) -> frozenset[str]:
        """The changes, without the modules of functions."""
        return frozenset(phrase.partition(":")[2] or phrase for phrase in self.outdated)


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
    """The candidates of a step: the newest artifact with each trace that was changed.

    Args:
        of: the beginning of a key, to choose only that artifact.

    Raises:
        TemperError: there is no such artifact, or the step's module is not found.
    """
    newest = find(catalog, f"{step}@{of}")
    history = [m for m in catalog.history(step) if not m.made_by]
    chosen = {m.discovered.state: m for m in ([newest] if of else history)}
    home = home_in(project_with(catalog.store, step), newest)
    accepted, present = catalog.store.accepted(step), Present()
    found = [_candidate(manifest, home, history, present, accepted) for manifest in chosen.values()]
    return [c for c in found if not c.is_equal] or found[-1:]


def neutral_candidates(catalog: Catalog, steps: Sequence[str]) -> list[Candidate]:
    """Candidates whose code only seems to differ in names, places, documentation, hints or
    messages: of these steps, or of all steps of the store."""
    found: list[Candidate] = []
    for step in steps or sorted(catalog.store.steps()):
        with contextlib.suppress(*(() if steps else (TemperError,))):
            found += candidates(catalog, step)
    return [candidate for candidate in found if candidate.looks_neutral]


def accept(catalog: Catalog, candidate: Candidate) -> None:
    """Record that the present code of a step gives the result that an artifact holds.

    Raises:
        TemperError: the store cannot be written.
    """
    manifest = candidate.manifest
    note: dict[str, Any] = {
        "artifact": f"{manifest.step}@{manifest.key}",
        "changes": candidate.outdated,
        "time": time.strftime("%FT%TZ", time.gmtime()),
        "host": platform.node(),
        "cwd": os.getcwd(),
        **git_state(),
    }
    catalog.store.accept(manifest.step, manifest.discovered.state, candidate.trace, note)


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
    home: Home,
    history: Sequence[Manifest],
    present: Present,
    accepted: Accepted,
) -> Candidate:
    outdated = present.changes(home, manifest.discovered, lambda: accepted)
    if not outdated:
        return Candidate(manifest, 0, [], manifest.discovered)
    state = manifest.discovered.state
    revived = {other.key for other in history if other.discovered.state == state}
    neutral = neutral_trace(home, manifest.discovered, present)
    trace = neutral or accepted_trace(home, manifest.discovered, present)
    return Candidate(manifest, len(revived), outdated, trace, looks_neutral=neutral is not None)
