"""Checks that the files of artifacts are as committed: first sizes, then BLAKE3 of every byte.

It uses no cached digests, since it looks for silent corruption of the disk. Damaged artifacts are
marked, so that the next run that needs one makes it again.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.dag.files import FileEntry, describe_stream
from pipeline.store.catalog import Catalog
from pipeline.store.layout import LISTED_ONLY, DataLoss, Store
from pipeline.store.manifest import Manifest

_REMOTE_READERS = 16


@dataclass(frozen=True)
class Damage:
    """A file that is not as committed.

    Attributes:
        expected: the committed size and digest; ``None`` for a file that was never committed.
        found: what is there instead, in words.
        unread: whether the file is there, or listed, and cannot be read: it may be intact.
    """

    manifest: Manifest
    file: str
    expected: FileEntry | None
    found: str
    unread: bool = False


def verify(
    store: Store, manifests: Sequence[Manifest], read: Callable[[int], None] = lambda _: None
) -> list[Damage]:
    """Read artifacts and return their damaged files, and those that cannot be read.

    An artifact that is deleted meanwhile is not reported.

    Args:
        read: called with the number of bytes that have just been checked.

    Raises:
        TemperError, OSError: the store cannot be read.
    """
    contents = store.contents(manifests)
    files = [(manifest, name) for manifest in manifests for name in manifest.files]

    def look(manifest: Manifest, name: str) -> Damage | None:
        expected = manifest.files[name]
        path = f"{store.content_path(manifest)}/{name}"
        size = contents[manifest.attempt][0].get(name)
        if size is None or size != expected.size:
            read(expected.size)
            found = "nothing" if size is None else f"{size} bytes"
            return Damage(manifest, name, expected, found)
        try:
            digest = _stored_digest(store, path, read)
        except FileNotFoundError:
            folder, _, base = path.rpartition("/")
            still = bool(store.still_listed(folder, [base]))  # then it may come back
            found = f"{store.url_of(path)}, which {LISTED_ONLY}" if still else "nothing"
            return Damage(manifest, name, expected, found, unread=still)
        except OSError as error:
            if not store.is_local:
                raise
            found = f"{path}: {error.strerror}; let this user read it (chmod), or check the disk"
            return Damage(manifest, name, expected, found, unread=True)
        same = digest == expected.blake3
        return None if same else Damage(manifest, name, expected, f"BLAKE3 {digest}")

    with ThreadPoolExecutor(os.cpu_count() if store.is_local else _REMOTE_READERS) as pool:
        damages = [damage for damage in pool.map(lambda f: look(*f), files) if damage is not None]
    damages += [
        Damage(manifest, name, None, "what was not committed")
        for manifest in manifests
        for name in contents[manifest.attempt][1]
    ]
    return _still_there(store, damages)


def mark_damaged(store: Store, damages: Iterable[Damage]) -> None:
    """Mark artifacts as damaged, so that the next run that needs one makes it again.

    Raises:
        TemperError: the store cannot be written.
    """
    for manifest in {damage.manifest.attempt: damage.manifest for damage in damages}.values():
        store.mark(manifest, DataLoss.DAMAGED)


def _stored_digest(store: Store, path: str, read: Callable[[int], None]) -> str:
    try:
        with store.objects.fs.open(path, "rb") as file:
            return describe_stream(file, read=read).blake3
    except OSError:
        raise
    except Exception as error:  # libraries behind fsspec raise other errors than OSError
        raise OSError(f"cannot read {store.url_of(path)}: {error}") from error


def _still_there(store: Store, damages: list[Damage]) -> list[Damage]:
    """The damages, without artifacts that were evicted, deleted or marked meanwhile."""
    catalog = Catalog(store)

    def stands(manifest: Manifest) -> bool:
        known = any(m.attempt == manifest.attempt for m in catalog.history(manifest.step))
        return known and catalog.loss(manifest) is None

    return [damage for damage in damages if stands(damage.manifest)]
