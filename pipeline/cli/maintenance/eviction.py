"""Deletes the data of artifacts and keeps their manifests.

Steps that used an evicted artifact stay cached. The data is made again when its bytes are needed.
An artifact in use is not evicted: one whose key's lease is held, or one that a running step reads.
The specs of the attempts under held leases list what running steps read. So a step that starts at
the same moment may find its input missing: then its run makes the input again.
"""

import contextlib
from collections.abc import Sequence

from pipeline.base.errors import TemperError
from pipeline.store.activity import alone_with, attempts, leases, make_room
from pipeline.store.catalog import Catalog
from pipeline.store.layout import DataLoss, Store
from pipeline.store.manifest import Manifest
from pipeline.store.names.naming import SHOWN_DIGITS
from pipeline.store.names.tags import require_untagged
from pipeline.store.untrusted_input import parse_json


def evictable(catalog: Catalog, manifest: Manifest) -> list[Manifest]:
    """All generations of an artifact's key that still have their data."""
    return [
        generation
        for generation in catalog.history(manifest.step)
        if generation.key == manifest.key and catalog.loss(generation) is not DataLoss.EVICTED
    ]


def others(catalog: Catalog, step: str, chosen: Sequence[Manifest]) -> int:
    """The number of artifacts of a step that have data and are not in `chosen`."""
    going = {manifest.key for manifest in chosen}
    have_data = [m for m in catalog.history(step) if catalog.loss(m) is None]
    return len({manifest.key for manifest in have_data} - going)


def require_unused(store: Store, manifests: Sequence[Manifest]) -> None:
    """
    Raises:
        TemperError: an artifact is tagged or being made, or a running step reads it.
    """
    require_untagged(store, manifests)
    mine = {(manifest.step, manifest.key) for manifest in manifests}
    contents = {store.content_path(manifest): manifest for manifest in manifests}
    for lease in [lease for lease in leases(store) if lease.is_held]:
        who = f"{lease.step}@{lease.key[:SHOWN_DIGITS]}, which {lease.who} is making"
        if (lease.step, lease.key) in mine:
            raise TemperError(f"cannot evict {who}; wait for it or stop it")
        for content in _inputs_of(store, lease.step, lease.key):
            for path, manifest in contents.items():
                if content == path or content.startswith(f"{path}/"):
                    raise TemperError(
                        f"cannot evict {manifest.name}: it is an input of {who}; "
                        "wait for it or stop it"
                    )


def evict(store: Store, manifests: Sequence[Manifest]) -> None:
    """Delete the data of generations, also where the disk has no room left for a lease.

    Raises:
        TemperError: another process has just begun to make it again, or the store cannot be
            written.
    """
    make_room(store)
    for manifest in manifests:
        with alone_with(store, manifest.step, manifest.key, "temper evict") as alone:
            if not alone:
                raise TemperError(
                    f"cannot evict {manifest.name}: it is being made; see: temper status"
                )
            require_untagged(store, [manifest])  # also not since it was chosen
            store.evict(manifest)


def _inputs_of(store: Store, step: str, key: str) -> list[str]:
    """The paths from which the newest attempt at a key reads its inputs."""
    tries = [attempt for attempt in attempts(store, step) if attempt.key == key]
    if not tries:
        return []  # its driver has only just acquired the lease
    with contextlib.suppress(ValueError, KeyError, TypeError):
        spec = parse_json(store.read(f"{store.root}/{tries[-1].folder}/spec.json") or b"{}")
        return [str(entry["content"]) for entry in spec["inputs"]]
    return []
