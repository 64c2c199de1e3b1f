"""Copies scratch folders to a remote store, so that they survive their machine.

    scratch/<step>/<key>/<epoch>/<node>/<number>.json   a snapshot: {path: {"size", "blake3"}}
                                        <blake3>        the bytes of its files

A link within the folder, such as ``last.ckpt`` to the last checkpoint, is ``{"link": TARGET}`` in a
snapshot, and an empty folder ``{"folder": true}``. A link that leads out of the folder is in none:
another machine may lack what it leads to, and a store must not lead a step to write elsewhere.

A step writes scratch on local disk, as always. A thread checks every few seconds whether the folder
has changed and is stable, and then takes a snapshot. It does not send files again that the last
snapshot has. It writes the snapshot last, so the store has either the old or the new one, never a
mixture. A worker on another machine starts from the latest snapshot, which it checks byte by byte.
If a machine is lost, so is what was written since the last snapshot: at most one interval, if the
step writes files under a temporary name and renames them, which steps must do anyway because they
can be killed.

If a step has several nodes, each keeps its own files, and a restore takes the union. The previous
snapshot is kept as well: it replaces the last one if that is damaged. With several nodes it is also
needed because one node may have lost its machine before it kept its part of the last checkpoint. (A
checkpoint of several parts must record itself whether it is complete.)
"""

import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.redaction import exact_record
from pipeline.dag.files import FileEntry, describe
from pipeline.store.layout import RECORDS
from pipeline.store.manifest import file_entries
from pipeline.store.objects import Objects, is_within, scan, target_within
from pipeline.store.untrusted_input import is_path, parse_json

EVERY_SECONDS = 10.0
KEPT = 2
COPIED_BYTES = 2**20
"""Smaller files are copied before they are sent. Larger files are linked instead, assuming that
nobody appends to them."""
FREEZE_TRIES = 20
FREEZE_SECONDS = 0.05

_SNAPSHOT = re.compile(r"(([0-9]{1,9})/[0-9]{1,9})/([0-9]{8,9})\.json")


@dataclass
class State:
    """The content of a folder at one moment.

    Attributes:
        files: size, modification time and inode of each file.
        links: the target of each link, relative to the folder that holds the link.
        folders: the empty folders.
        outward: links that lead out of the folder.
    """

    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    outward: set[str] = field(default_factory=set)


class Damaged(OSError):
    """A copy differs from what was kept."""


# a file may have the name of a folder, or the reverse
_NOT_AS_KEPT = (Damaged, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


@dataclass(frozen=True)
class Snapshot:
    """A state of the folder on one node.

    Attributes:
        place: its ``<epoch>/<node>``.
        links: the targets of links, each relative to the folder that holds the link.
        folders: empty folders.
    """

    place: str
    number: int
    files: Mapping[str, FileEntry]
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Collection[str] = ()

    @classmethod
    def from_json(cls, place: str, number: int, data: bytes) -> "Snapshot":
        """Raise `ValueError`, `TypeError` or `AttributeError` if the data is none of a snapshot."""
        files: dict[str, Any] = {}
        links: dict[str, str] = {}
        folders: list[str] = []
        for name, entry in parse_json(data).items():
            match entry:
                case {"link": str(target)} if is_path(name) and "\0" not in target:
                    links[name] = target
                case {"folder": True} if is_path(name):
                    folders.append(name)
                case _:
                    files[name] = entry
        return cls(place, number, file_entries(files, is_path), links, folders)

    def to_json(self) -> bytes:
        entries: dict[str, Any] = {name: asdict(entry) for name, entry in self.files.items()}
        entries |= {name: {"link": target} for name, target in self.links.items()}
        entries |= {name: {"folder": True} for name in self.folders}
        return exact_record(entries)

    @property
    def name(self) -> str:
        return f"{self.place}/{self.number:08d}.json"

    def blobs(self) -> set[str]:
        return {entry.blake3 for entry in self.files.values()}


class Staging:
    """The scratch folder of one node, and its copies.

    Args:
        local: the folder on local disk.
        remote: ``scratch/<step>/<key>`` within the store.
        epoch: the lease's epoch; see :meth:`pipeline.store.layout.Store.scratch_path`.
        nodes: the number of machines of the step.

    Attributes:
        is_used: whether the store has copies.
    """

    def __init__(
        self, objects: Objects, local: Path, remote: str, epoch: int, node: int = 0, nodes: int = 1
    ):
        self._objects, self._local, self._remote = objects, local, remote
        self._epoch = epoch
        self._place = f"{epoch}/{node}"
        self._nodes = nodes
        self._mark = local.with_name(f".{local.name}.staged-{node}")
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._kept = State()
        self._told: set[str] = set()
        self._known: dict[tuple[str, tuple[int, int, int]], FileEntry] = {}
        self._own: list[Snapshot] = []
        self.is_used = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Keep copying the folder, which is restored, in the block, and once more if that fails."""
        thread = threading.Thread(target=self._keep, name="staging", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self.keep_at_last()  # its errors must not hide the error of the step
            raise
        finally:
            self._over.set()

    # --- down -----------------------------------------------------------------------------------

    def restore(self) -> None:
        """Restore the folder from its last snapshot, from whichever machine that came.

        If this machine's folder is the source of the last snapshot, it may be newer, so it stays.

        Raises:
            OSError: the store cannot be read.
        """
        found = self._snapshots()
        self.is_used = bool(found)
        self._own = [snapshot for snapshot in found if snapshot.place == self._place]
        last = list({snapshot.place: snapshot for snapshot in found}.values())
        earlier = [snapshot for snapshot in found if snapshot not in last]
        latest = " ".join(sorted(snapshot.name for snapshot in last))
        if not found or (self._local.exists() and self._marked() == latest):
            return
        for chosen in (last, earlier) if self._nodes == 1 else (found, earlier):
            try:
                self._fetch(chosen)
            except _NOT_AS_KEPT as error:
                print(f"scratch: {error}; an earlier state is taken", flush=True)
                continue
            self._note(latest)
            return

    def _snapshots(self) -> list[Snapshot]:
        """The snapshots of the latest epoch that has any, in order."""
        numbers: dict[int, list[tuple[int, str]]] = {}
        for path in self._objects.sizes(self._remote):
            if (found := _SNAPSHOT.fullmatch(path)) and int(found[2]) <= self._epoch:
                numbers.setdefault(int(found[2]), []).append((int(found[3]), found[1]))
        latest = numbers[max(numbers)] if numbers else []
        snapshots = (self._read(place, number) for number, place in sorted(latest))
        return [snapshot for snapshot in snapshots if snapshot is not None]

    def _read(self, place: str, number: int) -> Snapshot | None:
        """A snapshot; ``None`` if it is damaged or was removed meanwhile."""
        data = self._objects.read(f"{self._remote}/{place}/{number:08d}.json")
        try:
            return Snapshot.from_json(place, number, data or b"")
        except (ValueError, TypeError, AttributeError):
            return None

    def _fetch(self, snapshots: Sequence[Snapshot]) -> None:
        """Replace the folder by the files of these snapshots; later snapshots win."""
        wanted = {
            name: (f"{self._remote}/{snapshot.place}/{entry.blake3}", entry)
            for snapshot in snapshots
            for name, entry in snapshot.files.items()
        }
        names: dict[str, list[str]] = {}
        for name, (blob, _) in wanted.items():
            names.setdefault(blob, []).append(name)
        with _beside(self._local, "restore") as target:
            blobs = {blob: target.with_name(f"blob-{i}") for i, blob in enumerate(names)}
            if blobs:
                self._objects.get(blobs)
            for blob, entry in wanted.values():
                if describe(blobs[blob]) != entry:
                    raise Damaged(f"{self._objects.url_of(blob)} is damaged")
            for blob, same in names.items():
                for name in same:
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(blobs[blob], target / name)
                blobs[blob].unlink()
            for snapshot in snapshots:
                for name in snapshot.folders:
                    (target / name).mkdir(parents=True, exist_ok=True)
            self._link(
                target, {n: to for snapshot in snapshots for n, to in snapshot.links.items()}
            )
            shutil.rmtree(self._local, ignore_errors=True)
            os.replace(target, self._local)

    def _link(self, folder: Path, links: Mapping[str, str]) -> None:
        """Make links last, so that nothing is written through one.

        Raises:
            Damaged: a link leads out of the folder.
        """
        for name, to in links.items():
            path = folder / name
            if not is_within(folder, path.parent):
                raise Damaged(f"the copy of {name} lies behind a link")
            path.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(to, path)
        for name in links:
            if not is_within(folder, folder / name):
                raise Damaged(f"the copy of {name} is a link out of the scratch folder")

    def _marked(self) -> str:
        with contextlib.suppress(OSError):
            return self._mark.read_text()
        return ""

    def _note(self, latest: str) -> None:
        with contextlib.suppress(OSError):
            self._mark.write_text(latest)

    # --- up -------------------------------------------------------------------------------------

    def keep(self) -> bool:
        """Copy the folder's present state into the store. False if the folder keeps changing.

        Raises:
            OSError: the store cannot be written.
        """
        with self._turn:
            state = _look(self._local)
            self._tell_of(state.outward)
            if state == self._kept:
                return True
            with _beside(self._local, "frozen") as frozen:
                state = self._freeze(frozen)
                if state is None:
                    return False
                files = {n: self._describe(frozen, n, seen) for n, seen in state.files.items()}
                self._send(frozen, files)
                if any(_changed(frozen / name, seen) for name, seen in state.files.items()):
                    return False  # something appends to a large file
                self._publish(files, state)
                self._kept = state
        return True

    def keep_at_last(self) -> None:
        """Like :meth:`keep`, but ignore errors, since nothing can be done about them."""
        self._over.set()
        with contextlib.suppress(OSError):
            self.keep()

    def _keep(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            try:
                self.keep()
            except OSError as error:  # perhaps temporary; the step continues meanwhile
                print(f"scratch could not be kept: {error}", flush=True)

    def _tell_of(self, outward: set[str]) -> None:
        for name in sorted(outward - self._told):
            print(
                f"scratch: {name} is a link out of the scratch folder, so it is in no copy; if the "
                "step goes on on another machine, it is missing",
                flush=True,
            )
        self._told |= outward

    def _freeze(self, frozen: Path) -> State | None:
        """Copy the folder as it is at one moment; return ``None`` if it keeps changing."""
        for _ in range(FREEZE_TRIES):
            state = _look(self._local)
            with contextlib.suppress(FileNotFoundError):
                for name, (size, _, _) in state.files.items():
                    (frozen / name).parent.mkdir(parents=True, exist_ok=True)
                    _copy_or_link(self._local / name, frozen / name, size)
                if _look(self._local) == state:
                    return state
            shutil.rmtree(frozen)
            frozen.mkdir()
            time.sleep(FREEZE_SECONDS)
        return None

    def _describe(self, frozen: Path, name: str, state: tuple[int, int, int]) -> FileEntry:
        if (name, state) not in self._known:
            self._known[name, state] = describe(frozen / name)
        return self._known[name, state]

    def _send(self, frozen: Path, files: Mapping[str, FileEntry]) -> None:
        there = set[str]().union(*(snapshot.blobs() for snapshot in self._own))
        blobs = {
            f"{self._remote}/{self._place}/{entry.blake3}": (frozen / name, entry.size)
            for name, entry in files.items()
            if entry.blake3 not in there
        }
        if not blobs:
            return
        self._objects.put({blob: path for blob, (path, _) in blobs.items()})
        sizes = self._objects.sizes(f"{self._remote}/{self._place}")
        for blob, (_, size) in blobs.items():
            if sizes.get(blob.rpartition("/")[2]) != size:
                raise OSError(f"{self._objects.url_of(blob)} is not what was sent")

    def _publish(self, files: Mapping[str, FileEntry], state: State) -> None:
        number = self._own[-1].number + 1 if self._own else 1
        snapshot = Snapshot(self._place, number, files, state.links, state.folders)
        self._objects.replace(f"{self._remote}/{snapshot.name}", snapshot.to_json())
        self.is_used = True
        if self._nodes == 1:
            self._note(snapshot.name)
        self._own.append(snapshot)
        gone, self._own = self._own[:-KEPT], self._own[-KEPT:]
        needed = set[str]().union(*(kept.blobs() for kept in self._own))
        with contextlib.suppress(OSError):  # leftovers only cost space
            for earlier in gone:
                self._objects.remove(f"{self._remote}/{earlier.name}")
                for blob in earlier.blobs() - needed:
                    self._objects.remove(f"{self._remote}/{self._place}/{blob}")


def _look(folder: Path) -> State:
    """The content of the folder; nothing, if all files are records of what its files depend on."""
    found = State()
    if not folder.is_dir():
        return found
    for name, item in scan(str(folder), "", True):
        with contextlib.suppress(FileNotFoundError):
            if item.is_symlink():
                _add_link(found, folder, name)
            elif item.is_dir():
                found.folders.add(name)
            elif item.is_file():
                stat = item.stat()
                found.files[name] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    if all(name.startswith(f"{RECORDS}/") for name in found.files):
        return State()
    holding = {name.rpartition("/")[0] for name in (*found.files, *found.links, *found.folders)}
    found.folders -= holding
    return found


def _add_link(found: State, folder: Path, name: str) -> None:
    if (to := target_within(folder, folder / name)) is None:
        found.outward.add(name)
    else:
        found.links[name] = to


def _copy_or_link(source: Path, target: Path, size: int) -> None:
    if size > COPIED_BYTES:
        with contextlib.suppress(OSError):  # the file system has no links
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def _changed(frozen: Path, state: tuple[int, int, int]) -> bool:
    """Whether a linked file has changed."""
    stat = frozen.stat()
    return stat.st_ino == state[2] and (stat.st_size, stat.st_mtime_ns) != state[:2]


@contextlib.contextmanager
def _beside(folder: Path, purpose: str) -> Iterator[Path]:
    """An empty folder on the same disk, removed at the end unless it was moved."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{purpose}-") as temporary:
        (made := Path(temporary) / "scratch").mkdir()
        yield made
