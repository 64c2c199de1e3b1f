"""What earlier attempts at a step depended on: their results in scratch depend on it, too.

    SCRATCH/.observed/ATTEMPT/rules, home       which files count, where the step's module lies
                             /events, modules   its records: see ``observation``

An attempt may be killed at any moment, long before its dependencies are worked out. So each record
is in scratch before the step can use what it tells of. The next attempt works them out. If one has
changed, scratch is emptied: half of a result would be of the old file and half of the new one. It
is emptied, too, if it has results and no records, as after a step has emptied it by itself.
Otherwise they become dependencies of the artifact, as the next attempt may not look at them again.

Keys do not hold code, so two checkouts of a project that differ in code have one scratch folder for
a key. Results of the other checkout are set aside as ``KEY~…``, and it takes them up again.

The records lie in scratch because they go where it goes: to other machines, and away.
"""

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

from pipeline.base.errors import TemperError
from pipeline.base.redaction import exact_record
from pipeline.observed.discovery import Earlier, Home, Present, discover_earlier
from pipeline.observed.hook import unobserved
from pipeline.observed.observation import Observation
from pipeline.observed.path_filter import Rules
from pipeline.store.layout import ASIDE, RECORDS
from pipeline.store.manifest import Discovered

NO_EARLIER = Earlier()


def has_results(scratch: Path) -> bool:
    """Whether a scratch folder holds anything besides records."""
    return any(entry.name != RECORDS for entry in scratch.iterdir())


def go_on_from(
    scratch: Path,
    observation: Observation,
    home: Home,
    *,
    is_versioned: bool,
    is_shared: bool,
) -> tuple[Earlier, list[str]]:
    """What the results in scratch depend on; and, where that has changed, how: then scratch is
    empty now. From here on, scratch is told what this attempt depends on.

    Args:
        is_versioned: the author decides when results change, so scratch stays as it is.
        is_shared: several nodes use the folder.

    Raises:
        TemperError: what they depend on has changed, and other nodes may be at work in the folder.
    """
    with unobserved():
        earlier, changes = what_results_need(scratch, home, Present(), is_shared)
        if is_versioned:
            changes = []
        if changes and is_shared:
            raise TemperError(
                f"{'; '.join(changes)}, and results in {scratch} depend on it; undo the change, or "
                "delete that folder on every node"
            )
        if not is_shared and (changes or not has_results(scratch)) and _exchange(scratch, home):
            earlier, changes = what_results_need(scratch, home, Present())
        if not is_shared and (changes or not has_results(scratch)):
            earlier = NO_EARLIER
            for entry in sorted(scratch.iterdir(), key=lambda entry: entry.name == RECORDS):
                _remove(entry)  # records last: without them, results would be of no file
        _begin(scratch / RECORDS, observation, home)
    return earlier, changes


def what_results_need(
    scratch: Path, home: Home, present: Present, is_shared: bool = False
) -> tuple[Earlier, list[str]]:
    """What the results in scratch depend on, and how that has changed. It changes nothing, so a
    plan can ask, too."""
    if not has_results(scratch):
        return NO_EARLIER, []
    earlier, changes = _earlier(scratch / RECORDS, home, present)
    if not is_shared and not _begun(scratch / RECORDS):
        changes = ["no record says what the results in it depend on"]
    return earlier, changes


def _exchange(scratch: Path, home: Home) -> bool:
    """Set aside results in scratch that another checkout may still use, and take up those of which
    all dependencies are as they were. Return whether scratch is another folder now."""
    key = scratch.name.partition("-")[0]
    aside = scratch.parent.glob(f"{key}{ASIDE}*")
    own = next((f for f in aside if not what_results_need(f, home, Present())[1]), None)
    homes = _homes(scratch) - {home.folder}
    is_foreign = bool(homes) and all(map(os.path.isdir, homes))
    if is_foreign:
        scratch.rename(scratch.parent / f"{key}{ASIDE}{secrets.token_hex(8)}")
    elif own is not None:
        shutil.rmtree(scratch)
    if own is not None:
        own.rename(scratch)
    elif is_foreign:
        scratch.mkdir()
    return is_foreign or own is not None


def _homes(scratch: Path) -> set[str]:
    """The folders of the projects whose attempts left results in a scratch folder."""
    found = set[str]()
    for file in scratch.glob(f"{RECORDS}/*/home") if has_results(scratch) else ():
        with suppress(OSError, ValueError, TypeError):
            found.add(Home.read(file.read_text()).folder)
    return found


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _begun(records: Path) -> list[Path]:
    """The records of attempts whose step has begun: ``modules`` is the last file to be made."""
    return [file.parent for file in sorted(records.glob("*/modules"))]


def _earlier(records: Path, home: Home, present: Present) -> tuple[Earlier, list[str]]:
    """What all earlier attempts depended on, and what of it has changed."""
    changes: dict[str, None] = {}
    code: dict[str, str] = {}
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    sources: dict[str, str] = {}
    for folder in _begun(records):
        try:
            one = _of(folder)
        except (OSError, ValueError, TypeError):
            return NO_EARLIER, [f"the records in {folder} are damaged"]
        changes |= dict.fromkeys(present.changes(home, one.discovered))
        code |= one.discovered.code
        files |= one.discovered.files
        folders |= one.discovered.folders
        sources |= one.sources
    return Earlier(Discovered(code, files, folders), sources), [*changes]


def _of(folder: Path) -> Earlier:
    rules = Rules.read((folder / "rules").read_text())
    home = Home.read((folder / "home").read_text())
    return discover_earlier(folder, home, rules)


def _begin(records: Path, observation: Observation, home: Home) -> None:
    """Let an observation write its records to scratch, too."""
    folder = records / secrets.token_hex(8)
    folder.mkdir(parents=True)
    (folder / "home").write_bytes(exact_record(astuple(home)))
    observation.keep(folder)
