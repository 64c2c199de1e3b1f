"""Reads the manifests of a store, with a number of requests that grows only with step names.

The manifests of a step are listed once, and read from one *index* beside them. The index holds
copies of manifests, each with the version that the listing gave its manifest. A copy with another
version than the listing is not used; then the manifest itself is read. The first line of an index
is the checksum of the rest. So an index that is stale, lost or damaged costs time, never
correctness. Anyone may write it, and the last writer wins. Copies with equal traces share one.

Manifests with very many files are not in the index; they are read one by one.
"""

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import blake3

from pipeline.base.errors import TemperError
from pipeline.base.redaction import exact_record
from pipeline.store.layout import LISTED_ONLY, DataLoss, Store, object_name, parse_object_name
from pipeline.store.manifest import Discovered, Manifest
from pipeline.store.untrusted_input import is_step, parse_json

READERS = 16
MOST_INDEXED_FILES = 500
_TRACES = "traces"
_NO_TRACE = Discovered()

Place = tuple[str, int]
"""A key and a generation."""


@dataclass(frozen=True)
class Unread:
    """A manifest that a listing names and that cannot be read.

    Attributes:
        why: what is wrong with it and what to do, in a sentence with its address.
        damaged: whether its bytes are not those of a manifest. If not, it may be intact.
    """

    url: str
    why: str
    damaged: bool


@dataclass
class _Shelf:
    """The manifests of one step at the time of listing, and the index of their copies.

    Attributes:
        traces: the traces in the index, by their state; those that were read are parsed.
        refused: the errors of those that cannot be read.
    """

    versions: dict[Place, str] = field(default_factory=dict)
    indexed: dict[str, dict[str, Any]] = field(default_factory=dict)
    traces: dict[str, Any] = field(default_factory=dict)
    manifests: dict[Place, Manifest] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    losses: dict[Place, DataLoss] = field(default_factory=dict)
    refused: dict[Place, TemperError] = field(default_factory=dict)
    unindexed: bool = False


class Catalog:
    """The manifests of a store, each step listed at most once. See the module docstring."""

    def __init__(self, store: Store):
        self.store = store
        self._shelves: dict[str, _Shelf] = {}

    def latest(self, step: str, key: str) -> Manifest | None:
        """The latest generation of a key, as of the listing of its step and later additions."""
        shelf = self._shelf(step)
        if key not in shelf.generations:
            return None
        return self._manifest(step, (key, shelf.generations[key]))

    def generations(self, step: str, key: str) -> Iterator[Manifest]:
        """Every generation of a key, the latest first."""
        for generation in range(self._shelf(step).generations.get(key, -1), -1, -1):
            if (found := self._manifest(step, (key, generation))) is not None:
                yield found

    def look(self, step: str, key: str) -> Manifest | None:
        """The latest generation of a key, looked up in the store again."""
        known = self._shelf(step).generations.get(key, -1)
        if (newer := self.store.latest(step, key, after=known)) is not None:
            self.add(newer)
        return self.latest(step, key)

    def history(self, step: str) -> list[Manifest]:
        """Every artifact that a step made, oldest first, including those whose data is gone.

        Damaged manifests are left out; looking up such an artifact raises an error.
        """
        shelf = self._shelf(step)
        self._read_missing(step, shelf)
        return sorted(shelf.manifests.values(), key=lambda manifest: manifest.attempt)

    def everything(self) -> list[Manifest]:
        """The history of every step in the store, oldest first."""
        made = [m for step in self.store.steps() for m in self.history(step)]
        return sorted(made, key=lambda manifest: manifest.attempt)

    def unreadable(self, steps: Iterable[str] = ()) -> list[Unread]:
        """The manifests that cannot be read, of the named steps or, by default, of all; without
        those that were deleted after the listing."""
        found = []
        for step in list(steps) or self.store.steps():
            shelf = self._shelf(step)
            self._read_missing(step, shelf)
            folder = f"{self.store.root}/manifests/{step}"
            missing = [place for place in shelf.versions if place not in shelf.manifests]
            names = {object_name(*place): place for place in sorted(missing)}
            still = self.store.still_listed(folder, names) if names else ()
            for name in still:
                url = self.store.url_of(f"{folder}/{name}")
                error = shelf.refused.get(names[name])
                damaged = error is not None and not isinstance(error.__cause__, OSError)
                found.append(Unread(url, str(error or f"{url} {LISTED_ONLY}"), damaged))
        return found

    def with_all_above(self, made: Iterable[Manifest]) -> list[Manifest]:
        """Artifacts and all of their ancestors that are known here, inputs first."""
        found: dict[str, Manifest] = {}
        pending, seen = [*made][::-1], set[str]()
        while pending:
            manifest = pending[-1]
            if manifest.attempt in seen:
                found.setdefault(manifest.attempt, pending.pop())
                continue
            seen.add(manifest.attempt)
            above = filter(None, (self.latest(i.step, i.key) for i in manifest.inputs))
            pending += [other for other in above if other.attempt not in seen]
        return list(found.values())

    def loss(self, manifest: Manifest) -> DataLoss | None:
        """The mark of an artifact whose data is gone; ``None`` if it has no mark."""
        return self._shelf(manifest.step).losses.get(_place(manifest))

    def add(self, manifest: Manifest) -> None:
        """Add an artifact that was committed after its step was listed."""
        shelf = self._shelf(manifest.step)
        shelf.manifests[_place(manifest)] = manifest
        known = shelf.generations.get(manifest.key, 0)
        shelf.generations[manifest.key] = max(known, manifest.generation)
        shelf.unindexed = True

    def save(self) -> None:
        """Update incomplete indexes. It never fails, since the index only saves time."""
        with contextlib.suppress(OSError, TemperError):
            for step in [step for step, shelf in self._shelves.items() if shelf.unindexed]:
                self.rewrite(step)

    def rewrite(self, step: str) -> None:
        """Write the index of a step again, without manifests that no longer exist."""
        shelf = self._list(step)  # list again: a copy must be read after its version was listed
        self._read_missing(step, shelf)
        traces: dict[str, Discovered] = {}
        index: dict[str, Any] = {_TRACES: traces}
        for place, manifest in shelf.manifests.items():
            if place in shelf.versions and len(manifest.files) <= MOST_INDEXED_FILES:
                index[object_name(*place)] = {
                    "version": shelf.versions[place],
                    "manifest": replace(manifest, discovered=_NO_TRACE),
                    "trace": manifest.discovered.state,
                }
                traces[manifest.discovered.state] = manifest.discovered
        data = exact_record(index)  # of manifests as they are; the index has a checksum of its own
        self.store.objects.replace(self._index_path(step), _checksum(data) + b"\n" + data)
        self._shelves[step] = shelf
        shelf.unindexed = False

    # --- reading -----------------------------------------------------------------------------

    def _shelf(self, step: str) -> _Shelf:
        if step not in self._shelves:
            self._shelves[step] = self._list(step)
        return self._shelves[step]

    def _list(self, step: str) -> _Shelf:
        shelf = _Shelf()
        if not is_step(step):
            return shelf
        for entry in self.store.listing(f"{self.store.root}/manifests/{step}"):
            if (parsed := parse_object_name(entry.name)) is None:
                continue
            key, generation, loss = parsed
            if loss is not None:
                shelf.losses[key, generation] = loss
            else:
                known = shelf.generations.get(key, 0)
                shelf.generations[key] = max(known, generation)
                shelf.versions[key, generation] = entry.version
        shelf.indexed = self._read_index(step) if shelf.versions else {}
        shelf.traces = shelf.indexed.pop(_TRACES, {})
        shelf.unindexed = not all(self._in_index(shelf, place) for place in shelf.versions)
        return shelf

    def _read_index(self, step: str) -> dict[str, dict[str, Any]]:
        with contextlib.suppress(ValueError, TemperError):  # also one that cannot be read
            checksum, _, data = (self.store.read(self._index_path(step)) or b"").partition(b"\n")
            found = parse_json(data) if checksum == _checksum(data) else {}
            return found if isinstance(found, dict) else {}
        return {}

    def _manifest(self, step: str, place: Place) -> Manifest | None:
        shelf = self._shelf(step)
        if place not in shelf.manifests and (found := self._from_index(step, shelf, place)):
            shelf.manifests[place] = found
        if place not in shelf.manifests:
            self._read_missing(step, shelf)  # read all that the index lacks, in parallel
        if place not in shelf.manifests:
            if found := self.store.manifest(step, *place):
                shelf.manifests[place] = found
            elif place in shelf.versions:  # else the step would be made again, and never committed
                folder = f"{self.store.root}/manifests/{step}"
                self.store.require_gone(folder, [object_name(*place)])
        return shelf.manifests.get(place)  # `None` if it was deleted since the listing

    def _in_index(self, shelf: _Shelf, place: Place) -> bool:
        copy = shelf.indexed.get(object_name(*place))
        return isinstance(copy, dict) and copy.get("version") == shelf.versions.get(place)

    def _from_index(self, step: str, shelf: _Shelf, place: Place) -> Manifest | None:
        if not self._in_index(shelf, place):
            return None
        with contextlib.suppress(TypeError, KeyError, AttributeError, ValueError, RecursionError):
            copy = shelf.indexed[object_name(*place)]
            found = Manifest.from_dict(copy["manifest"], (step, *place))
            return replace(found, discovered=_trace(shelf, copy["trace"]))
        return None

    def _read_missing(self, step: str, shelf: _Shelf) -> None:
        """Read every manifest of a step; those that are not in the index in parallel."""

        def read(place: Place) -> Manifest | None:
            try:
                return self._from_index(step, shelf, place) or self.store.manifest(step, *place)
            except TemperError as error:
                shelf.refused[place] = error
                return None

        places = [place for place in shelf.versions if place not in shelf.manifests]
        lacking = [place for place in places if not self._in_index(shelf, place)]
        shelf.manifests.update(_found((p, read(p)) for p in places if p not in lacking))
        with ThreadPoolExecutor(READERS) as pool:
            shelf.manifests.update(_found(zip(lacking, pool.map(read, lacking), strict=True)))

    def _index_path(self, step: str) -> str:
        return f"{self.store.root}/index/{step}.json"


def _trace(shelf: _Shelf, state: str) -> Discovered:
    """A trace of the index; all artifacts that have it get one object."""
    if not isinstance(shelf.traces[state], Discovered):
        read = Discovered.from_dict(shelf.traces[state])
        if read.state != state:
            raise ValueError("it is another trace")
        shelf.traces[state] = read
    found: Discovered = shelf.traces[state]
    return found


def _checksum(index: bytes) -> bytes:
    return blake3.blake3(index).hexdigest().encode()


def _found(pairs: Iterable[tuple[Place, Manifest | None]]) -> dict[Place, Manifest]:
    return {place: manifest for place, manifest in pairs if manifest is not None}


def _place(manifest: Manifest) -> Place:
    return manifest.key, manifest.generation
