"""Deleting garbage while drivers may be at work beside it.

The lease of each key is taken for as long as it is being cleared, so no driver begins with it; keys
whose lease another process holds are passed over. The records of runs are read once more before
anything goes, and what a run has come to use since it was judged stays. Of an artifact the latest
manifest goes first and the data last: whoever stops halfway leaves no manifest without its data.

What is left is a driver that had planned with an artifact no kept run used, and writes its record
only after it is gone. It finds its input missing when it needs the bytes: the step fails and says
so, the next run makes the input again, and no result is ever wrong.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pipeline.cli.keep.garbage import Findings, Garbage, Key, Kind, Uses
from pipeline.store.activity import alone_with, forget_released, remove_if_empty
from pipeline.store.catalog import Catalog
from pipeline.store.latest import forget_broken_links
from pipeline.store.layout import Store
from pipeline.store.runs import read_runs

WORKERS = 16


def delete(store: Store, findings: Findings) -> int:
    """Delete what was found, less what has come into use since; the bytes that are freed.

    Raises:
        TemperError, OSError: the store cannot be written.
    """
    since = [r for r in read_runs(store) if r.name not in findings.runs or r.is_in_progress()]
    used = Uses(since)
    by_key: dict[Key, list[Garbage]] = {}
    for garbage in findings.garbage:
        if not any(used.has(m, latest=True) for m in garbage.manifests):
            by_key.setdefault((garbage.step, garbage.key), []).append(garbage)

    def clear(place: Key) -> int:
        return _clear(store, *place, by_key[place], findings)

    with ThreadPoolExecutor(WORKERS) as pool:
        freed = sum(pool.map(clear, by_key))
    for step in {g.step for group in by_key.values() for g in group if g.kind is Kind.ARTIFACT}:
        Catalog(store).rewrite(step)
    forget_broken_links(store)
    return freed


def _clear(store: Store, step: str, key: str, group: Sequence[Garbage], findings: Findings) -> int:
    """Delete all garbage of one key, alone with it; 0 if it is in use. The bytes freed."""
    ends = any(garbage.kind is Kind.LEASE for garbage in group)
    if len(group) == ends and forget_released(store, step, key):
        return group[0].size
    with alone_with(store, step, key, "temper gc") as alone:
        if not alone:
            return 0
        for garbage in group:
            _delete(store, garbage)
    if ends or (step, key) not in findings.leases:  # else its epoch is needed
        forget_released(store, step, key)
    return sum(garbage.size for garbage in group)


def _delete(store: Store, garbage: Garbage) -> None:
    if garbage.kind is Kind.SCRATCH:  # on local disk, whatever the store
        for folder in garbage.folders:
            shutil.rmtree(folder, ignore_errors=True)
        return
    if garbage.kind is Kind.DATA:
        for manifest in garbage.manifests:
            store.evict(manifest)
    for file in garbage.files:
        store.objects.remove(file)
    for folder in garbage.folders:
        store.objects.remove_tree(folder)
        remove_if_empty(store, folder.rpartition("/")[0])
