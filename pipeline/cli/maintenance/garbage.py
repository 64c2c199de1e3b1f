"""Finds garbage, data that nobody needs. :mod:`pipeline.cli.maintenance.collect` deletes it.

Garbage is:

- an *attempt* that no manifest names and whose key's lease nobody holds. If an engine may still run
  its job without a driver, the attempt and the job's record stay until the key is committed, or no
  kept run has left the key unfinished;
- *scratch* of a key whose lease nobody holds, if the key is committed or no kept run has left it
  unfinished. Scratch folders are on local disks: only those of this machine are found, and the
  copies in a remote store;
- an *artifact* that no kept run used or made, that has no tag, and from which nothing tagged was
  made: its manifests, then its marks, then its data. All generations of a key are deleted together.
  Of a key that stays, an earlier generation loses its data and keeps its manifest if no kept run
  used it or its data is marked as lost;
- *progress* files and *leases* of keys whose lease nobody holds. A lease stays while its key needs
  scratch, since the lease's epoch identifies the valid scratch folder;
- *interrupted writes*: what a process that was killed had not yet renamed to its final name.

Attempts, scratch, interrupted writes and everything that no run mentions must also be older than a
grace period, so that users can read the log of a failure, and because the clocks of machines may
differ; an interrupted write must be older than a minute in any case. The kept runs are all recorded
runs, or those that the policy selects, and every run in progress. A run in progress also keeps
every artifact that its steps might use, if it does not know their keys yet. Run records of the
first layout do not list what they used: such a record keeps everything that was made before its
end. A lease whose holder died on another machine counts as held until a run takes it over.

Drivers may be at work meanwhile, and nothing is locked. The order of listing makes this safe: first
attempts and scratch, then leases, then manifests, then run records:

- A driver takes a lease, makes an attempt, commits it, and then releases the lease. So if an
  attempt was listed and its lease was not held afterwards, the attempt is named by a manifest that
  is listed later, or it is never committed. (A holder whose lease expires between its last check
  and its commit may still commit, and so may a driver that lost its lease and holds it again. It
  then finds its files missing by their sizes, as after any damage.)
- A driver writes its run record before it takes a lease, and every manifest names its run. So the
  run of a listed manifest is among the records that are read afterwards.
"""

import contextlib
import enum
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.cli.step_lookup import NotImportable, home_in, project_with
from pipeline.launchers.jobs import JobRecord
from pipeline.observed.discovery import Present
from pipeline.store.activity import Attempt, Lease, attempts, holding_runs, leases
from pipeline.store.catalog import Catalog
from pipeline.store.layout import ASIDE, DataLoss, Store, parse_object_name
from pipeline.store.manifest import Manifest
from pipeline.store.names.naming import SHOWN_DIGITS
from pipeline.store.names.tags import pinned
from pipeline.store.runs import Run, read_runs, stamp_seconds
from pipeline.store.untrusted_input import is_key, is_step

_WRITTEN_IN = ("accepted", "index", "jobs", "leases", "manifests", "progress", "runs", "tags")
_SUFFIX = "|".join(["json", *(loss.value for loss in DataLoss)])
_FILE_BESIDE = re.compile(rf"\..+\.({_SUFFIX})\.[0-9a-f]{{8}}")
"""The hidden names under which a local store writes its objects (``pipeline.store.objects``)."""
_FOLDER_BESIDE = re.compile(r"\.(copy|frozen|restore)-[a-z0-9_]{8}")
"""The names of the copies of scratch (``pipeline.store.scratch_snapshots`` and ``layout``)."""
_OF_KEY = re.compile(r"([^/]+)/([0-9a-f]{32})\.json")

WRITE_SECONDS = 60.0
"""A write that is younger may be under way, whatever grace period a user names."""

Key = tuple[str, str]
"""A step's name and a key."""


class Kind(enum.Enum):
    """The kinds of garbage, in words."""

    ATTEMPT = "attempts that failed or were killed"
    SCRATCH = "scratch"
    STAGED = "copies of scratch"
    JOB = "records of jobs"
    ARTIFACT = "artifacts that no kept run used"
    DATA = "data of artifacts made again or evicted"
    MARK = "marks without an artifact"
    PROGRESS = "progress files"
    LEASE = "leases that are over"
    WRITE = "interrupted writes"


@dataclass(frozen=True)
class Garbage:
    """Something that can be deleted.

    Attributes:
        files, folders: their paths, in the order of deletion.
        manifests: for an artifact, its manifests, the latest generation first; for data, its
            manifest.
    """

    kind: Kind
    step: str
    key: str
    size: int
    files: Sequence[str] = ()
    folders: Sequence[str] = ()
    manifests: Sequence[Manifest] = ()


@dataclass(frozen=True)
class Policy:
    """Which runs to keep.

    Args:
        last, days: keep this many of the latest runs, and all of the last days; keep all if both
            are ``None``.
        grace: the grace period in seconds.
    """

    last: int | None = None
    days: float | None = None
    grace: float = 3600.0

    def kept(self, runs: Sequence[Run], holders: frozenset[str]) -> list[Run]:
        """The kept ones of the recorded runs, oldest first."""
        if self.last is None and self.days is None:
            return list(runs)
        latest = {run.name for run in runs[len(runs) - min(self.last or 0, len(runs)) :]}
        since = time.time() - 86400 * (self.days or 0)
        return [
            run
            for run in runs
            if run.name in latest
            or (self.days is not None and run.started >= since)
            or run.is_in_progress(holders)
        ]


@dataclass(frozen=True)
class Findings:
    """All garbage, and notes for the user.

    Attributes:
        runs: names of the run records that were taken into account.
        leases: keys that had a lease, held or not.
    """

    garbage: Sequence[Garbage]
    notes: Sequence[str]
    runs: frozenset[str]
    leases: frozenset[Key]


def find_garbage(store: Store, policy: Policy) -> Findings:
    """Find all garbage. Deletes nothing, writes nothing.

    Raises:
        TemperError: something in the store is damaged and must be repaired first.
        OSError: the store cannot be read.
    """
    tries, scratch = attempts(store), _scratch(store)  # the order matters: see the module docstring
    staged, jobs = _staged(store), _jobs(store)
    progress = store.objects.sizes(f"{store.root}/progress")
    known_leases = leases(store)
    shelves = _Shelves.read(store)
    runs = read_runs(store)
    held = frozenset((lease.step, lease.key) for lease in known_leases if lease.is_held)
    kept = policy.kept(runs, holding_runs(known_leases))
    finder = _Finder(store, policy, shelves, held, tries, jobs, runs, kept, pinned(store))
    garbage = [
        *finder.attempts(),
        *finder.scratch(scratch),
        *finder.staged(staged),
        *finder.jobs_over(),
        *finder.artifacts(),
        *finder.marks(),
        *finder.progress(progress),
        *finder.leases(known_leases),
        *_interrupted_writes(store, held, time.time() - max(policy.grace, WRITE_SECONDS)),
    ]
    return Findings(
        garbage,
        finder.notes(),
        frozenset(run.name for run in runs),
        frozenset((lease.step, lease.key) for lease in known_leases),
    )


class Uses:
    """What runs made or used, according to their records."""

    def __init__(self, runs: Iterable[Run]):
        runs = list(runs)
        self.names = {run.name for run in runs}
        entries = [entry for run in runs for entry in run.steps]
        self.attempts = {(e["step"], e.get("attempt")) for e in entries}
        self.keys = {(e["step"], e["key"]) for e in entries if e.get("key")}
        # a run in progress may come to use any artifact of a step whose key it does not know yet
        pending = [run for run in runs if run.is_in_progress()]
        self.keys |= {(e["step"], None) for run in pending for e in run.steps if not e.get("key")}
        # records without keys may have used everything that was made before their end
        self.until = max((run.last_stamp for run in runs if not run.names_keys), default="")

    def has(self, manifest: Manifest, latest: bool) -> bool:
        """Whether a run made or used an artifact.

        Args:
            latest: whether it is the present artifact of its key, which a run with this key would
                use.
        """
        step = manifest.step
        return (
            (step, manifest.attempt) in self.attempts
            or (latest and not self.keys.isdisjoint(((step, manifest.key), (step, None))))
            or manifest.provenance.get("run") in self.names
            or manifest.attempt[:15] <= self.until
        )


@dataclass(frozen=True)
class _Shelves:
    """All manifests of a store by key, earliest generation first; all marks by key and generation.

    Attributes:
        unread: keys with a manifest that cannot be read; these keys are left alone.
    """

    manifests: Mapping[Key, Sequence[Manifest]]
    marks: Mapping[Key, Mapping[int, Sequence[DataLoss]]]
    unread: frozenset[Key]

    @classmethod
    def read(cls, store: Store) -> "_Shelves":
        listed: dict[Key, set[int]] = {}
        marks: dict[Key, dict[int, list[DataLoss]]] = {}
        for path in store.objects.sizes(f"{store.root}/manifests"):
            step, _, name = path.partition("/")
            if (parsed := parse_object_name(name)) is None or not is_step(step):
                continue
            key, generation, loss = parsed
            if loss is None:
                listed.setdefault((step, key), set()).add(generation)
            else:
                marks.setdefault((step, key), {}).setdefault(generation, []).append(loss)
        catalog = Catalog(store)
        manifests: dict[Key, list[Manifest]] = {}
        for step in {step for step, _ in listed}:
            for manifest in catalog.history(step):
                manifests.setdefault((step, manifest.key), []).append(manifest)
        for group in manifests.values():
            group.sort(key=lambda manifest: manifest.generation)
        unread = {k for k, numbers in listed.items() if len(manifests.get(k, ())) < len(numbers)}
        return cls(manifests, marks, frozenset(unread))

    def is_marked(self, manifest: Manifest, *losses: DataLoss) -> bool:
        marks = self.marks.get((manifest.step, manifest.key), {})
        return not set(losses).isdisjoint(marks.get(manifest.generation, ()))


@dataclass(frozen=True)
class _Finder:
    """Finds each kind of garbage in the listings.

    Attributes:
        jobs: attempts that an engine may be running, by key; ``None`` if the record does not say.
        runs, kept: all recorded runs, and those to keep.
        pinned: the tags of artifacts, by step and attempt.
    """

    store: Store
    policy: Policy
    shelves: _Shelves
    held: frozenset[Key]
    tries: Sequence[Attempt]
    jobs: Mapping[Key, str | None]
    runs: Sequence[Run]
    kept: Sequence[Run]
    pinned: Mapping[Key, Sequence[str]]

    def attempts(self) -> Iterator[Garbage]:
        named = {(m.step, m.attempt) for group in self.shelves.manifests.values() for m in group}
        for attempt in self.tries:
            step, key = place = attempt.step, attempt.key
            if (step, attempt.name) in named or not self._is_free(*place):
                continue
            # an unreadable record may be of any attempt
            is_done = self.jobs.get(place, "") not in (attempt.name, None) or self._is_over(*place)
            if self._is_old(attempt.name) and is_done:
                folder = f"{self.store.root}/{attempt.folder}"
                yield Garbage(Kind.ATTEMPT, step, key, attempt.size, folders=[folder])

    def scratch(self, found: Iterable["_Scratch"]) -> Iterator[Garbage]:
        for scratch in found:
            step, key = scratch.step, scratch.key
            old = scratch.changed < time.time() - self.policy.grace
            if old and self._is_free(step, key) and self._is_over(step, key):
                yield Garbage(Kind.SCRATCH, step, key, scratch.size, folders=[scratch.folder])

    def staged(self, found: Mapping[Key, int]) -> Iterator[Garbage]:
        for (step, key), size in found.items():
            if self._is_left(step, key):
                folder = self.store.staged_scratch(step, key)
                yield Garbage(Kind.STAGED, step, key, size, folders=[folder])

    def jobs_over(self) -> Iterator[Garbage]:
        for step, key in self.jobs:
            if self._is_left(step, key):
                yield Garbage(Kind.JOB, step, key, 0, files=[self.store.job_path(step, key)])

    def artifacts(self) -> Iterator[Garbage]:
        """Artifacts to delete, and data of generations whose manifests stay."""
        uses, mentioned = Uses(self.kept), Uses(self.runs)
        # what a tagged artifact was made from stays, too: without it no plan would find its key
        made = (m for group in self.shelves.manifests.values() for m in group)
        tagged = [m for m in made if (m.step, m.attempt) in self.pinned]
        above = Catalog(self.store).with_all_above(tagged) if tagged else ()
        uses.attempts |= {(m.step, m.attempt) for m in above}
        tries = {(attempt.step, attempt.name): attempt for attempt in self.tries}
        for (step, key), group in self.shelves.manifests.items():
            if not self._is_free(step, key):
                continue
            latest, standing = group[-1], self._standing(group)
            needed = [
                m
                for m in group
                if uses.has(m, m.attempt in standing)
                or not (mentioned.has(m, m.attempt in standing) or self._is_old(m.attempt))
            ]
            if not needed:
                left = [tries[step, m.attempt] for m in group if (step, m.attempt) in tries]
                yield self._artifact(group, sum(attempt.size for attempt in left))
                continue
            for manifest in group:
                attempt = tries.get((step, manifest.attempt))
                idle = self._has_idle_data(manifest, manifest is latest, manifest in needed)
                if attempt is not None and attempt.content and idle:
                    yield Garbage(Kind.DATA, step, key, attempt.content, manifests=[manifest])

    def _standing(self, group: Sequence[Manifest]) -> frozenset[str]:
        """The attempts that a plan may choose for a key: the latest, and those that are valid now,
        as the same step of another script may be."""
        if len(group) == 1 or not any(made.discovered for made in group):
            return frozenset({group[-1].attempt})
        project, now = project_with(self.store, group[-1].step), Present()
        accepted = self.store.accepted(group[-1].step)
        stand = {group[-1].attempt}
        entries = set[tuple[str, ...]]()
        for made in reversed(group):
            try:
                home = home_in(project, made)
            except NotImportable:  # whether it is valid is unknown
                stand.add(made.attempt)
                continue
            if home.entry() in entries or now.changes(home, made.discovered, lambda: accepted):
                continue
            entries.add(home.entry())
            stand.add(made.attempt)
        return frozenset(stand)

    def marks(self) -> Iterator[Garbage]:
        """Marks that an interrupted deletion left: they would make a new artifact look lost."""
        for (step, key), marks in self.shelves.marks.items():
            present = {m.generation for m in self.shelves.manifests.get((step, key), ())}
            left = {number: marks[number] for number in sorted(marks.keys() - present)}
            if left and self._is_free(step, key):
                yield Garbage(Kind.MARK, step, key, 0, files=self._mark_paths(step, key, left))

    def progress(self, found: Mapping[str, int]) -> Iterator[Garbage]:
        for path, size in found.items():
            if (place := _OF_KEY.fullmatch(path)) is None or not is_step(place[1]):
                continue
            step, key = place.groups()
            if self._is_free(step, key) and self._is_quiet(step, key):
                file = f"{self.store.root}/progress/{path}"
                yield Garbage(Kind.PROGRESS, step, key, size, files=[file])

    def leases(self, found: Iterable[Lease]) -> Iterator[Garbage]:
        for lease in found:
            if self._is_left(lease.step, lease.key):
                yield Garbage(Kind.LEASE, lease.step, lease.key, 0)

    def notes(self) -> list[str]:
        """Notes for the user on what is kept, and why."""
        notes = [
            f"{step}@{key[:SHOWN_DIGITS]} is kept: a manifest of it cannot be read"
            for step, key in sorted(self.shelves.unread)
        ]
        if old := [run.name for run in self.kept if not run.names_keys]:
            notes.append(
                f"{len(old)} of the kept runs were recorded by an older version, which did not "
                f"record what they used: all artifacts made up to {max(old)} are kept "
                "(temper runs --forget RUN lets go of one)"
            )
        if not self.store.is_local:
            notes.append("scratch on other machines' disks is not seen from here; its copies are")
        return notes

    def _artifact(self, group: Sequence[Manifest], size: int) -> Garbage:
        step, key = group[0].step, group[0].key
        files = [self.store.manifest_path(step, key, m.generation) for m in reversed(group)]
        files += self._mark_paths(step, key, self.shelves.marks.get((step, key), {}))
        data = [self.store.attempt_path(manifest) for manifest in group]
        return Garbage(Kind.ARTIFACT, step, key, size, files, data, tuple(reversed(group)))

    def _mark_paths(
        self, step: str, key: str, marks: Mapping[int, Sequence[DataLoss]]
    ) -> list[str]:
        return [
            self.store.manifest_path(step, key, generation, loss)
            for generation, losses in marks.items()
            for loss in losses
        ]

    def _has_idle_data(self, manifest: Manifest, latest: bool, needed: bool) -> bool:
        if self.shelves.is_marked(manifest, DataLoss.EVICTED):
            return True
        if (manifest.step, manifest.attempt) in self.pinned:
            return False
        return not latest and (not needed or self.shelves.is_marked(manifest, DataLoss.DAMAGED))

    @cached_property
    def _last_tries(self) -> Mapping[Key, str]:
        return {(attempt.step, attempt.key): attempt.name for attempt in self.tries}

    def _is_free(self, step: str, key: str) -> bool:
        return (step, key) not in self.held and (step, key) not in self.shelves.unread

    def _is_old(self, attempt: str) -> bool:
        stamp = stamp_seconds(attempt)
        return stamp is not None and stamp < time.time() - self.policy.grace

    def _is_quiet(self, step: str, key: str) -> bool:
        """Whether the last attempt at a key is older than the grace period."""
        return (step, key) not in self._last_tries or self._is_old(self._last_tries[step, key])

    def _is_over(self, step: str, key: str) -> bool:
        """Whether a key is committed, or no kept run would continue it."""
        is_made = (step, key) in self.shelves.manifests
        return is_made or not any(run.may_go_on_with(step, key) for run in self.kept)

    def _is_left(self, step: str, key: str) -> bool:
        """Whether nobody works on a key, has lately, or would go on with it."""
        return self._is_free(step, key) and self._is_quiet(step, key) and self._is_over(step, key)


@dataclass(frozen=True)
class _Scratch:
    """A scratch folder of this machine; ``changed`` is the newest modification time inside it."""

    step: str
    key: str
    folder: str
    size: int
    changed: float


def _scratch(store: Store) -> list[_Scratch]:
    found = []
    for folder in store.scratch_root().glob("*/[!.]*"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a running step tidies up
            key = folder.name.partition(ASIDE)[0].partition("-")[0]
            if folder.is_symlink() or folder.parent.is_symlink() or not is_key(key):
                continue  # not made by Temper
            found.append(_Scratch(folder.parent.name, key, str(folder), *_size_and_change(folder)))
    return found


def _size_and_change(folder: Path) -> tuple[int, float]:
    """The bytes of a file or of all files in a folder, and the newest modification time."""
    states = [path.lstat() for path in (folder, *folder.rglob("*"))]
    size = sum(state.st_size for state in states if stat.S_ISREG(state.st_mode))
    return size, max(state.st_mtime for state in states)


def _interrupted_writes(store: Store, held: frozenset[Key], before: float) -> Iterator[Garbage]:
    """Files, and copies of scratch folders, that nobody has written to since ``before``. The copies
    of steps that somebody makes now stay, since to send a large one takes long."""
    at_work = {step for step, _ in held}
    found = [
        copy
        for copy in store.scratch_root().glob("*/.*-*")
        if _FOLDER_BESIDE.fullmatch(copy.name) and copy.parent.name not in at_work
        if copy.is_dir() and not (copy.is_symlink() or copy.parent.is_symlink())
    ]
    if store.is_local:
        files = [*Path(store.root).glob(".temper.json.????????")]
        for room in _WRITTEN_IN:
            walk = os.walk(Path(store.root, room))
            files += (Path(folder, name) for folder, _, names in walk for name in names)
        found += (file for file in files if _FILE_BESIDE.fullmatch(file.name))
    for path in found:
        with contextlib.suppress(OSError):  # its writer is alive
            size, changed = _size_and_change(path)
            if changed < before:
                yield Garbage(Kind.WRITE, "", "", size, [str(path)])


def _staged(store: Store) -> dict[Key, int]:
    """The size in bytes of the copies of scratch in a remote store, by key."""
    found: dict[Key, int] = {}
    if store.is_local:
        return found
    for path, size in store.objects.sizes(f"{store.root}/scratch").items():
        step, _, rest = path.partition("/")
        key, _, inside = rest.partition("/")
        if not inside or not (is_step(step) and is_key(key)):
            continue  # not made by Temper
        found[step, key] = found.get((step, key), 0) + size
    return found


def _jobs(store: Store) -> dict[Key, str | None]:
    """The attempts that are recorded as jobs of an engine, by key; ``None`` if a record cannot be
    read."""
    found: dict[Key, str | None] = {}
    for path in store.objects.sizes(f"{store.root}/jobs"):
        if (place := _OF_KEY.fullmatch(path)) and is_step(place[1]):
            record = JobRecord.read(store, *place.groups())
            found[place[1], place[2]] = record.attempt if record else None
    return found
