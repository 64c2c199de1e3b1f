"""What a store holds, step name by step name, in a number of requests that grows with names only.

The manifests of a step are listed once, and read from one *index* beside them: copies of manifests,
each with the version that the listing gave its manifest. A copy whose version is not that of the
listing is not used; the manifest itself is read. So the index can be stale, lost or half as long
as it should be, and costs time, never correctness; anyone may write it, and the last one wins.

Manifests with very many files are left out and read one by one.
"""

import contextlib
import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import TemperError
from pipeline.manifest import Manifest
from pipeline.store import Loss, Store

READERS = 16
MOST_INDEXED_FILES = 500
_STEM = re.compile(r"[0-9a-f]{32}(\.\d+)?")  # beside manifests may lie what is none
_LOSSES = {loss.value for loss in Loss}


@dataclass
class _Shelf:
    """One step's manifests, by object name, as they were when listed."""

    versions: dict[str, str] = field(default_factory=dict)
    indexed: dict[str, dict[str, Any]] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    losses: dict[str, Loss] = field(default_factory=dict)
    unindexed: bool = False


class Catalog:
    """The manifests of a store, each step listed at most once. See the module docstring."""

    def __init__(self, store: Store):
        self.store = store
        self._shelves: dict[str, _Shelf] = {}

    def latest(self, step: str, key: str) -> Manifest | None:
        """The latest generation of a key, when its step was listed or as added since."""
        shelf = self._shelf(step)
        if key not in shelf.generations:
            return None
        return self._manifest(step, _name(key, shelf.generations[key]))

    def look(self, step: str, key: str) -> Manifest | None:
        """The latest generation of a key in the store now."""
        known = self._shelf(step).generations.get(key, -1)
        if (newer := self.store.latest(step, key, after=known)) is not None:
            self.add(newer)
        return self.latest(step, key)

    def history(self, step: str) -> list[Manifest]:
        """Every artifact a step made, oldest first, those whose data is gone included.

        A damaged manifest is left out: whoever needs that artifact is told when it is looked up.
        """
        shelf = self._shelf(step)
        self._read_missing(step, shelf)
        return sorted(shelf.manifests.values(), key=lambda manifest: manifest.attempt)

    def everything(self) -> list[Manifest]:
        """The history of every step in the store, oldest first."""
        made = [m for step in self.store.steps() for m in self.history(step)]
        return sorted(made, key=lambda manifest: manifest.attempt)

    def unreadable(self, steps: Iterable[str] = ()) -> list[str]:
        """URLs of damaged manifests, of the named steps or by default of all."""
        found = []
        for step in list(steps) or self.store.steps():
            shelf = self._shelf(step)
            self._read_missing(step, shelf)
            folder = self.store.url_of(f"{self.store.root}/manifests/{step}")
            missing = [name for name in shelf.versions if name not in shelf.manifests]
            found += [f"{folder}/{name}" for name in sorted(missing)]
        return found

    def loss(self, manifest: Manifest) -> Loss | None:
        """Whether an artifact is marked as having lost its data."""
        stem = _name(manifest.key, manifest.generation).removesuffix(".json")
        return self._shelf(manifest.step).losses.get(stem)

    def add(self, manifest: Manifest) -> None:
        """Take note of an artifact that was committed after its step was listed."""
        shelf = self._shelf(manifest.step)
        shelf.manifests[_name(manifest.key, manifest.generation)] = manifest
        known = shelf.generations.get(manifest.key, 0)
        shelf.generations[manifest.key] = max(known, manifest.generation)
        shelf.unindexed = True

    def save(self) -> None:
        """Bring the index up to date where it lacked something. Never fails: it is for speed."""
        with contextlib.suppress(OSError, TemperError):
            for step in [step for step, shelf in self._shelves.items() if shelf.unindexed]:
                self.rewrite(step)

    def rewrite(self, step: str) -> None:
        """Write the index of a step anew, without the manifests that are not there any more."""
        shelf = self._list(step)  # afresh: a copy must be read after its version was listed
        self._read_missing(step, shelf)
        index = {}
        for name, manifest in shelf.manifests.items():
            copy = json.loads(manifest.to_json())
            if name in shelf.versions and len(manifest.files) <= MOST_INDEXED_FILES:
                index[name] = {"version": shelf.versions[name], "manifest": copy}
        self.store.objects.replace(self._index_path(step), json.dumps(index).encode())
        self._shelves[step] = shelf
        shelf.unindexed = False

    # --- reading -----------------------------------------------------------------------------

    def _shelf(self, step: str) -> _Shelf:
        if step not in self._shelves:
            self._shelves[step] = self._list(step)
        return self._shelves[step]

    def _list(self, step: str) -> _Shelf:
        shelf = _Shelf()
        for entry in self.store.listing(f"{self.store.root}/manifests/{step}"):
            stem, _, suffix = entry.name.rpartition(".")
            if suffix == "json" and _STEM.fullmatch(stem):
                key, _, generation = stem.partition(".")
                known = shelf.generations.get(key, 0)
                shelf.generations[key] = max(known, int(generation or 0))
                shelf.versions[entry.name] = entry.version
            elif suffix in _LOSSES:
                shelf.losses[stem] = Loss(suffix)
        shelf.indexed = self._read_index(step) if shelf.versions else {}
        missing = [name for name in shelf.versions if not self._in_index(shelf, name)]
        shelf.unindexed = bool(missing)
        return shelf

    def _read_index(self, step: str) -> dict[str, dict[str, Any]]:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(self.store.read(self._index_path(step)) or b"{}")
            return found if isinstance(found, dict) else {}
        return {}

    def _manifest(self, step: str, name: str) -> Manifest | None:
        shelf = self._shelf(step)
        if name not in shelf.manifests and (found := self._from_index(shelf, name)):
            shelf.manifests[name] = found
        if name not in shelf.manifests:
            self._read_missing(step, shelf)  # all that the index lacks, side by side
        if name not in shelf.manifests and (found := self._from_store(step, name)):
            shelf.manifests[name] = found
        return shelf.manifests.get(name)  # none: deleted since it was listed

    def _in_index(self, shelf: _Shelf, name: str) -> bool:
        copy = shelf.indexed.get(name)
        return isinstance(copy, dict) and copy.get("version") == shelf.versions.get(name)

    def _from_index(self, shelf: _Shelf, name: str) -> Manifest | None:
        if not self._in_index(shelf, name):
            return None
        key, _, generation = name.removesuffix(".json").partition(".")
        with contextlib.suppress(TypeError, KeyError, AttributeError, ValueError):
            found = Manifest.from_dict(shelf.indexed[name]["manifest"])
            found.require_place(found.step, key, int(generation or 0))
            return found
        return None

    def _from_store(self, step: str, name: str) -> Manifest | None:
        key, _, generation = name.removesuffix(".json").partition(".")
        return self.store.manifest(step, key, int(generation or 0))

    def _read_missing(self, step: str, shelf: _Shelf) -> None:
        """Read every manifest of a shelf, those that the index lacks side by side."""

        def read(name: str) -> Manifest | None:
            with contextlib.suppress(TemperError):
                return self._from_index(shelf, name) or self._from_store(step, name)
            return None

        names = [name for name in shelf.versions if name not in shelf.manifests]
        lacking = [name for name in names if not self._in_index(shelf, name)]
        shelf.manifests.update(_found((name, read(name)) for name in names if name not in lacking))
        with ThreadPoolExecutor(READERS) as pool:
            shelf.manifests.update(_found(zip(lacking, pool.map(read, lacking), strict=True)))

    def _index_path(self, step: str) -> str:
        return f"{self.store.root}/index/{step}.json"


def _found(pairs: Iterable[tuple[str, Manifest | None]]) -> dict[str, Manifest]:
    return {name: manifest for name, manifest in pairs if manifest is not None}


def _name(key: str, generation: int) -> str:
    return f"{key}.{generation}.json" if generation else f"{key}.json"
