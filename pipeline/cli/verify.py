"""Are artifacts' files what was committed? Sizes first, then BLAKE3 of every byte.

Nothing is taken from a cache of digests: what a disk has changed behind everybody's back is what is
looked for. What is found damaged is marked, so that whoever needs it next makes it again.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import blake3

from pipeline.catalog import Catalog
from pipeline.manifest import FileEntry, Manifest
from pipeline.store import Loss, Store

_BLOCK_BYTES = 4 * 2**20
_REMOTE_READERS = 16


@dataclass(frozen=True)
class Damage:
    """A file that is not what was committed; ``found`` says what is there instead."""

    manifest: Manifest
    file: str
    expected: FileEntry
    found: str


def verify(
    store: Store, manifests: Sequence[Manifest], read: Callable[[int], None] = lambda _: None
) -> list[Damage]:
    """Read artifacts and say which of their files are damaged.

    An artifact that is let go while it is read is not damaged, and not in the answer.

    Args:
        read: told of bytes that are done with, as they are.

    Raises:
        TemperError, OSError: the store cannot be read.
    """
    sizes = store.content_sizes(manifests)
    files = [(manifest, name) for manifest in manifests for name in manifest.files]

    def look(manifest: Manifest, name: str) -> Damage | None:
        expected = manifest.files[name]
        path = f"{store.content_path(manifest)}/{name}"
        size = sizes[manifest.attempt].get(name)
        if size is None or size != expected.size:
            read(expected.size)
            found = "nothing" if size is None else f"{size} bytes"
            return Damage(manifest, name, expected, found)
        try:
            digest = _digest(store, path, read)
        except FileNotFoundError:
            return Damage(manifest, name, expected, "nothing")
        same = digest == expected.blake3
        return None if same else Damage(manifest, name, expected, f"BLAKE3 {digest}")

    with ThreadPoolExecutor(os.cpu_count() if store.is_local else _REMOTE_READERS) as pool:
        damages = [damage for damage in pool.map(lambda f: look(*f), files) if damage is not None]
    return _still_there(store, damages)


def mark_damaged(store: Store, damages: Iterable[Damage]) -> None:
    """Mark artifacts as damaged, so that the next run that needs one makes it again.

    Raises:
        TemperError: the store cannot be written.
    """
    for manifest in {damage.manifest.attempt: damage.manifest for damage in damages}.values():
        store.mark(manifest, Loss.DAMAGED)


def _digest(store: Store, path: str, read: Callable[[int], None]) -> str:
    # In blocks, not a memory map: of a file cut short meanwhile, a map kills the process.
    hasher = blake3.blake3()
    try:
        with store.objects.fs.open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                hasher.update(block)
                read(len(block))
    except OSError:
        raise
    except Exception as error:  # the libraries behind fsspec have errors of their own
        raise OSError(f"cannot read {store.url_of(path)}: {error}") from error
    return hasher.hexdigest()


def _still_there(store: Store, damages: list[Damage]) -> list[Damage]:
    """Without those of artifacts that were evicted, collected or marked since they were listed."""
    catalog = Catalog(store)

    def stands(manifest: Manifest) -> bool:
        known = any(m.attempt == manifest.attempt for m in catalog.history(manifest.step))
        return known and catalog.loss(manifest) is None

    return [damage for damage in damages if stands(damage.manifest)]
