"""The layout of a store: the root URL below which everything that steps make lies.

    temper.json                               layout version, written first
    manifests/<step>/<key>.json               the commit of an artifact; created, never replaced
                    /<key>.1.json             the same key made again: the latest one counts
                    /<key>.evicted            mark: the data of that generation was deleted
                    /<key>.1.damaged          mark: its data is lost or not as committed
    attempts/<step>/<key>/<attempt>/content/  an attempt's files: the artifact's, once committed
                                    spec.json, report.json, log.txt
    scratch/<step>/<key>/                     checkpoints and finished shards; outlives attempts
    jobs/<step>/<key>.json                    the engine's job that makes it now
    progress/<step>/<key>.json                the progress of a running step
    leases/<step>/<key>/                      who is making it now; see lease.py
    tags/<name>.json                          a name that a user gave an artifact; see tags.py
    accepted/<step>/<a>-<b>.json              a trace that a user accepted for another
    index/<step>.json                         copies of manifests, for speed; see catalog.py
    runs/<run>.json                           one record for each invocation
    runs/<run>/<fingerprint>.json             the outcome of a step, until it is in the record
    latest/<experiment>/<result>              link to a result's content; see latest.py

A commit is the creation of the manifest, which only one writer can win. The manifest names the
attempt and every file in it. An attempt that was killed, or that lost the race, is never named by a
manifest, so it can never be taken for a result. Nothing is renamed across folders, since object
stores cannot rename. Scratch lies on local disk; for a remote store, that is a folder of this
machine, and the store holds copies of it.
"""

import contextlib
import enum
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.base.redaction import record
from pipeline.dag.canonical import hash_json
from pipeline.store.manifest import Discovered, Manifest
from pipeline.store.objects import (
    SHOWN_BYTES,
    Entry,
    LocalObjects,
    make_folder,
    open_objects,
    scan,
    target_within,
)
from pipeline.store.untrusted_input import is_step, parse_json

LAYOUT_VERSION = 2
"""Version 2 added generations, marks, leases, accepted code, index; 1 is readable."""
READABLE_LAYOUTS = (1, 2)
ASIDE = "~"
"""Follows the key in the name of a folder that another checkout left; see ``observed.earlier``."""
RECORDS = ".observed"
"""The folder in scratch with the records of what its files depend on; see
:mod:`pipeline.observed.scratch_dependencies`."""
_READERS = 16


class DataLoss(enum.Enum):
    """The reasons why an artifact's data is gone while its manifest remains."""

    EVICTED = "evicted"
    DAMAGED = "damaged"


_OBJECT_NAME = re.compile(
    r"([0-9a-f]{32})(?:\.([1-9][0-9]{0,8}))?"
    rf"\.(json|{'|'.join(loss.value for loss in DataLoss)})"
)


PRESENT: ContextVar[str | None] = ContextVar("store", default=None)
"""The store of the experiment whose steps are being built."""


def open_store(store: "str | Store | None") -> "Store":
    """The store of an argument; without one, that of the experiment that is being built, else of
    ``TEMPER_STORE``, or the folder ``store``."""
    if isinstance(store, Store):
        return store
    usual = PRESENT.get() or os.environ.get("TEMPER_STORE", "store")
    return Store(usual if store is None else store)


LISTED_ONLY = "is listed, and yet the store says that it does not exist; try again later"
"""What is wrong with a file that a request does not find and every listing names."""
_CREDENTIALS = {"gs": " (gcloud auth application-default login)", "s3": " (aws configure)"}
"""How to get credentials, by the scheme of an address."""


class Store:
    """Artifacts, attempts, scratch and run records under one local path or fsspec URL.

    Args:
        is_patient: whether the client of a bucket may wait for a network that does not answer, as
            in a worker, which nobody watches.

    Raises:
        TemperError: the URL is invalid, not writable, or holds another layout.
    """

    def __init__(self, url: str, is_patient: bool = False):
        self.objects, self.root = open_objects(url, is_patient)
        self.is_local = self.objects.is_local
        self.url = self.url_of(self.root)

    def url_of(self, path: str) -> str:
        """The address of a path in the store, which a person or another process can open."""
        return self.objects.url_of(path)

    def prepare(self) -> None:
        """Make the store ready for writing, and check that its layout is known."""
        path = f"{self.root}/temper.json"
        layout = record({"layout": LAYOUT_VERSION})
        with self.writing():
            self.objects.create(path, layout)
            if self.check_layout() < LAYOUT_VERSION:
                self.objects.replace(path, layout)

    def require_still_there(self) -> None:
        """Raise `TemperError` if the store has been deleted or moved since it was opened."""
        if self.read(f"{self.root}/temper.json") is None:
            raise TemperError(
                f"the store {self.url} was deleted or moved meanwhile; move it back, or run again "
                "to make everything anew"
            )

    def check_layout(self) -> int:
        """The layout version of the store; the present version if the store is empty.

        Raises:
            TemperError: another version of Temper wrote it, or it is no store.
        """
        path = f"{self.root}/temper.json"
        data = self.read(path)
        try:
            said = {"layout": LAYOUT_VERSION} if data is None else parse_json(data)
            if not isinstance(said, dict):
                raise TypeError("it says nothing of a layout")
        except (ValueError, TypeError) as error:
            shown = (data or b"")[:SHOWN_BYTES].decode(errors="replace")
            raise TemperError(
                f"{self.url_of(path)} is damaged (it begins with {shown!r}); if {self.url} is a "
                f'store, write {{"layout": {LAYOUT_VERSION}}} into that file, or else choose '
                "another with store="
            ) from error
        found = said.get("layout")
        if type(found) is not int:  # what another version writes need not be what this one does
            raise TemperError(
                f"{self.url_of(path)} names no layout that this version knows; choose another "
                "store with store=, or use the version of Temper that wrote it"
            )
        if found not in READABLE_LAYOUTS:
            raise TemperError(
                f"the store {self.url} has layout {found}, this version reads {LAYOUT_VERSION}; "
                "use another store, or the version of Temper that wrote it"
            )
        return found

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; ``None`` if there is none."""
        with self.reading(path):
            return self.objects.read(path)

    def require_gone(self, folder: str, names: Collection[str]) -> None:
        """Check that files that a listing has named, and a request has not found, were deleted
        between the two.

        Raises:
            TemperError: the store still lists one of them, so it may come back.
        """
        if names and (left := self.still_listed(folder, names)):
            raise TemperError(f"{self.url_of(f'{folder}/{left[0]}')} {LISTED_ONLY}")

    def still_listed(self, folder: str, names: Collection[str]) -> list[str]:
        """Those of some files that the store lists now."""
        return [entry.name for entry in self.listing(folder) if entry.name in names]

    def listing(self, folder: str) -> list[Entry]:
        """The objects directly in a folder, by name."""
        with self.reading(folder):
            return self.objects.list(folder)

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Convert errors of requests for a file or folder to :class:`TemperError`."""
        try:
            yield
        except OSError as error:
            remedy = f"is store={self.url} right?"
            if isinstance(error, PermissionError) and error.filename:  # a local file
                path = str(error.filename)
                remedy = "users who share a store need umask 002"
            elif not self.is_local:
                known = _CREDENTIALS.get(self.url.partition("://")[0], "")
                remedy = f"check that address, the network and the credentials{known}"
            raise TemperError(
                f"cannot read {self.url_of(path)}: {_reason(error)}; {remedy}"
            ) from error

    # --- manifests ---------------------------------------------------------------------------

    def manifest_path(
        self, step: str, key: str, generation: int = 0, loss: DataLoss | None = None
    ) -> str:
        """The path of a manifest; with a loss, of the mark beside it."""
        return f"{self.root}/manifests/{step}/{object_name(key, generation, loss)}"

    def manifest(self, step: str, key: str, generation: int = 0) -> Manifest | None:
        """The artifact that was committed under ``key``; ``None`` if there is none."""
        path = self.manifest_path(step, key, generation)
        data = self.read(path)
        if data is None:
            if self.is_local and os.path.isdir(path):  # no commit could succeed
                raise TemperError(f"{path} is a folder where a manifest lies; move it away")
            return None
        return Manifest.from_json(data, self.url_of(path), (step, key, generation))

    def latest(self, step: str, key: str, after: int = -1) -> Manifest | None:
        """The latest generation of a key after generation ``after``; ``None`` if there is none."""
        found = None
        while newer := self.manifest(step, key, after + 1):
            found, after = newer, after + 1
        return found

    def commit(self, manifest: Manifest) -> Manifest:
        """Commit an attempt. Return the committed manifest: another one's, if that came first."""
        path = self.manifest_path(manifest.step, manifest.key, manifest.generation)
        data = manifest.to_json()
        try:
            Manifest.from_dict(parse_json(data))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TemperError(f"{manifest.step}: its result cannot be recorded: {error}") from error
        with self.writing():
            self.objects.create(path, data)
        committed = self.manifest(manifest.step, manifest.key, manifest.generation)
        if committed is None:
            raise TemperError(
                f"the manifest {self.url_of(path)} vanished, or something else lies in its place; "
                "delete that and run again"
            )
        return committed

    def steps(self) -> list[str]:
        """The names of all steps that have an artifact in the store."""
        folder = f"{self.root}/manifests"
        with self.reading(folder):
            return sorted(filter(is_step, self.objects.folders(folder)))

    # --- data that is let go, lost or damaged ------------------------------------------------

    def lost_files(self, manifest: Manifest) -> list[str]:
        """The names of content files that are missing or have another size than committed."""
        return self.lost_among([manifest]).get(manifest.attempt, [])

    def lost_among(self, manifests: Iterable[Manifest]) -> dict[str, list[str]]:
        """The lost files of many artifacts, by attempt, without intact artifacts."""
        manifests = list(manifests)
        found = self.contents(manifests, with_others=False)
        lost = {
            m.attempt: [n for n, e in m.files.items() if found[m.attempt][0].get(n) != e.size]
            for m in manifests
        }
        return {attempt: names for attempt, names in lost.items() if names}

    def contents(
        self, manifests: Iterable[Manifest], with_others: bool = True
    ) -> dict[str, tuple[dict[str, int], Sequence[str]]]:
        """The sizes of the existing content files of artifacts by attempt and name, and the names
        of additional files in each. It costs one listing for each step name."""
        by_step: dict[str, list[Manifest]] = {}
        for manifest in manifests:
            by_step.setdefault(manifest.step, []).append(manifest)
        found: dict[str, tuple[dict[str, int], Sequence[str]]] = {}
        for step, group in by_step.items():
            one = self.content_path(group[0])
            folder = one if len(group) == 1 else f"{self.root}/attempts/{step}"
            with self.reading(folder):
                listing = self.objects.below(folder)
                for manifest in group:
                    content = self.content_path(manifest)
                    inside = listing.within(f"{content}/".removeprefix(f"{folder}/"))
                    sizes = {n: inside[n] for n in manifest.files if n in inside}
                    others: Sequence[str] = ()
                    if with_others:
                        others = self.objects.strangers(content, manifest.files, inside)
                    found[manifest.attempt] = sizes, others
        return found

    def mark(self, manifest: Manifest, loss: DataLoss) -> None:
        """Mark that an artifact's data is gone; its manifest stays."""
        path = self.manifest_path(manifest.step, manifest.key, manifest.generation, loss)
        note = {"attempt": manifest.attempt, "time": time.strftime("%FT%TZ", time.gmtime())}
        with self.writing():
            self.objects.create(path, record(note))

    def evict(self, manifest: Manifest) -> None:
        """Delete an artifact's data and keep its manifest."""
        self.mark(manifest, DataLoss.EVICTED)  # first, so that no reader uses half of the data
        self.objects.remove_tree(self.content_path(manifest))

    # --- accepted code -----------------------------------------------------------------------

    def accept(self, step: str, state: str, trace: Discovered, note: dict[str, Any]) -> None:
        """Record that artifacts whose trace has a state are valid while another trace holds."""
        accepted = {"state": state, "trace": asdict(trace), **note}
        path = f"{self.root}/accepted/{step}/{_accepted_name(state, trace)}"
        with self.writing():
            self.objects.create(path, record(accepted, exact=["state", "trace"], indent=1))

    def accepted(self, step: str) -> dict[str, list[Discovered]]:
        """All traces that were accepted for artifacts of a step, by the state of the artifact's own
        trace."""
        found: dict[str, list[Discovered]] = {}
        folder = f"{self.root}/accepted/{step}"
        for entry in self.listing(folder):
            data = self.read(f"{folder}/{entry.name}")
            # a damaged record accepts nothing
            with contextlib.suppress(ValueError, TypeError, KeyError):
                record = parse_json(data or b"")
                trace = Discovered.from_dict(record["trace"])
                if entry.name == _accepted_name(record["state"], trace):  # as its content says
                    found.setdefault(record["state"], []).append(trace)
        return found

    # --- where things lie --------------------------------------------------------------------

    def new_attempt(self, step: str, key: str) -> str:
        """The path of a new attempt folder; names sort by time."""
        return f"{self.root}/attempts/{step}/{key}/{name_by_time(time.time())}"

    def attempt_path(self, manifest: Manifest) -> str:
        return f"{self.root}/attempts/{manifest.step}/{manifest.key}/{manifest.attempt}"

    def content_path(self, manifest: Manifest) -> str:
        return f"{self.attempt_path(manifest)}/content"

    def progress_path(self, step: str, key: str) -> str:
        return f"{self.root}/progress/{step}/{key}.json"

    def scratch_root(self) -> Path:
        """The local folder that contains scratch folders, also for a remote store."""
        if self.is_local:
            return Path(self.root) / "scratch"
        name = hashlib.sha256(self.url.encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"temper-scratch-{os.getuid()}" / name

    def scratch_path(self, step: str, key: str, epoch: int = 0) -> Path:
        """A local folder that outlives the attempts at a key.

        Each ``epoch`` (see :mod:`pipeline.store.lease`) has its own folder, which starts as a copy
        of the previous one: a holder that lost its lease may still be writing to its folder.
        """
        folder = self.scratch_root() / step
        path = folder / (f"{key}-{epoch}" if epoch else key)
        self._require_no_link(path)
        if epoch and not path.exists():
            make_folder(folder)
            if (before := _scratch_before(folder, key, epoch)) is not None:
                with tempfile.TemporaryDirectory(dir=folder, prefix=".copy-") as copying:
                    copy = Path(copying) / "scratch"
                    shutil.copytree(before, copy, dirs_exist_ok=True, symlinks=True)
                    _link_within(copy, before)
                    os.replace(copy, path)
        return path

    def _require_no_link(self, scratch: Path) -> None:
        """Refuse a path with a link, which would lead the step to write elsewhere."""
        if isinstance(self.objects, LocalObjects):
            with self.reading(str(scratch)):
                self.objects.require_own(str(scratch))
            return
        for place in (scratch, *scratch.parents[:3]):  # up to the folder in the temporary folder
            with contextlib.suppress(FileNotFoundError):
                found = place.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                    raise TemperError(f"{place} is no folder of yours; delete it, or set TMPDIR")

    def staged_scratch(self, step: str, key: str) -> str:
        """Where a remote store has copies of scratch, as `scratch_snapshots` makes them."""
        return f"{self.root}/scratch/{step}/{key}"

    def forget_scratch(self, step: str, key: str, staged: bool = False) -> None:
        """Delete what only an unfinished step needs, and its copies if it is ``staged``. It never
        fails: leftovers only cost space."""
        folder = self.scratch_root() / step
        with contextlib.suppress(TemperError):
            self._require_no_link(folder / key)
            for scratch in folder.glob(f"{key}*"):
                if ASIDE not in scratch.name:
                    shutil.rmtree(scratch, ignore_errors=True)
            for mark in folder.glob(f".{key}*"):
                mark.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.objects.remove(self.progress_path(step, key))
        if staged:
            with contextlib.suppress(OSError):
                self.objects.remove_tree(self.staged_scratch(step, key))

    def job_path(self, step: str, key: str) -> str:
        """The path of the record of a key's job; see :mod:`pipeline.launchers.jobs`."""
        return f"{self.root}/jobs/{step}/{key}.json"

    def record_run(self, run: dict[str, Any]) -> str:
        """Write the record of one invocation, and return its path."""
        path = f"{self.root}/runs/{run['run']}.json"
        with self.writing():
            self.objects.replace(path, record(run, indent=1))
        return path

    def record_step(self, run: str, fingerprint: str, went: dict[str, Any]) -> None:
        """Record a step's outcome in a running run. It never fails: the run's record has it too."""
        with contextlib.suppress(OSError):
            path = f"{self.root}/runs/{run}/{fingerprint}.json"
            self.objects.replace(path, record(went))

    def steps_of_run(self, run: str) -> dict[str, Any]:
        """The outcomes of finished steps, by fingerprint, of a run without a final record."""
        folder = f"{self.root}/runs/{run}"
        names = [entry.name for entry in self.listing(folder)]
        found = {}
        with ThreadPoolExecutor(_READERS) as pool:
            read = pool.map(lambda name: self.read(f"{folder}/{name}"), names)
            data = dict(zip(names, read, strict=True))
        self.require_gone(folder, [name for name, went in data.items() if went is None])
        for name in names:
            with contextlib.suppress(ValueError):
                if isinstance(went := parse_json(data[name] or b""), dict):
                    found[name.removesuffix(".json")] = went
        return found

    def forget_steps_of_run(self, run: str) -> None:
        """Remove what :meth:`record_step` wrote. It never fails: leftovers only cost space."""
        with contextlib.suppress(OSError):
            self.objects.remove_tree(f"{self.root}/runs/{run}")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_bucket = not self.is_local and isinstance(error, FileNotFoundError)
            reason = (
                f"there is no bucket {self.root.split('/')[0]}" if is_bucket else _reason(error)
            )
            raise TemperError(
                f"cannot write to the store {self.url}: {reason}; "
                "set store=PATH_OR_URL (or TEMPER_STORE) to a place you can write to"
            ) from error


def _accepted_name(state: str, trace: Discovered) -> str:
    return f"{hash_json(state)}-{trace.state}.json"


def _scratch_before(folder: Path, key: str, epoch: int) -> Path | None:
    """The folder of the latest earlier epoch; ``None`` if there is none."""
    epochs: dict[int, Path] = {}
    for path in folder.glob(f"{key}*"):
        number = path.name.removeprefix(key).removeprefix("-") or "0"
        if re.fullmatch(r"[0-9]{1,9}", number) and path.is_dir() and not path.is_symlink():
            epochs[int(number)] = path
    earlier = [number for number in epochs if number < epoch]
    return epochs[max(earlier)] if earlier else None


def _link_within(copy: Path, before: Path) -> None:
    """Let each link of a copied folder that led into the folder lead into the copy."""
    for name, item in list(scan(str(copy), "", True)):
        if item.is_symlink() and (to := target_within(before, before / name)) is not None:
            os.unlink(copy / name)
            os.symlink(to, copy / name)


def object_name(key: str, generation: int, loss: DataLoss | None = None) -> str:
    """The file name of a manifest in its step's folder; with a loss, of the mark beside it."""
    number = f".{generation}" if generation else ""
    return f"{key}{number}.{loss.value if loss else 'json'}"


def parse_object_name(name: str) -> tuple[str, int, DataLoss | None] | None:
    """Key, generation and loss from a name that :func:`object_name` made; ``None`` for any other
    name: the folder may contain other files."""
    found = _OBJECT_NAME.fullmatch(name)
    if found is None:
        return None
    return found[1], int(found[2] or 0), None if found[3] == "json" else DataLoss(found[3])


def name_by_time(now: float) -> str:
    """A new name for a run or an attempt; names sort by time, to the millisecond."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
    return f"{stamp}-{int(now % 1 * 1000):03d}{secrets.token_hex(3)}"


def _reason(error: OSError) -> str:
    """The reason alone: an error with a cause repeats what was tried."""
    cause = error.__cause__ or error
    return error.strerror or str(cause) or type(cause).__name__
