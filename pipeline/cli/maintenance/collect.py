"""Deletes garbage while drivers may be at work.

It holds the lease of each key while it deletes, so no driver begins with that key, and skips keys
whose lease another process holds. If the disk has no room for a lease, it first deletes what needs
none. Before it deletes anything it reads the run records again, and keeps everything that a run has
begun to use since the garbage was found. It deletes the latest manifest of an artifact first and
the data last, so an interruption leaves no manifest without data.

One case remains: a driver that planned with an artifact that no kept run used, and wrote its record
only after the deletion. It finds that its input is missing when it needs the bytes: the step fails
with an error that says so, and the next run makes the input again. No result is ever wrong.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.cli.maintenance.garbage import Findings, Garbage, Key, Kind, Uses
from pipeline.store.activity import alone_with, forget_released, make_room, remove_if_empty
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.names.result_names import forget_broken_links
from pipeline.store.names.tags import pinned
from pipeline.store.runs import read_runs

WORKERS = 16


def delete(store: Store, findings: Findings) -> int:
    """Delete garbage that no run has begun to use since it was found; return the bytes freed.

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

    freed = sum(map(_delete_write, by_key.pop(("", ""), [])))  # of no key, so no lease is needed
    is_full = make_room(store)
    if is_full:
        freed += sum(_delete_attempts(store, place, by_key) for place in [*by_key])
    with ThreadPoolExecutor(1 if is_full else WORKERS) as pool:  # each lease takes room
        freed += sum(pool.map(clear, by_key))
    for step in {g.step for group in by_key.values() for g in group if g.kind is Kind.ARTIFACT}:
        Catalog(store).rewrite(step)
    forget_broken_links(store)
    return freed


def _clear(store: Store, step: str, key: str, group: Sequence[Garbage], findings: Findings) -> int:
    """Delete all garbage of one key under its lease; return the bytes freed, 0 if it is in use."""
    ends = any(garbage.kind is Kind.LEASE for garbage in group)
    if len(group) == ends and forget_released(store, step, key):
        return group[0].size
    with alone_with(store, step, key, "temper gc") as alone:
        if not alone:
            return 0
        made = [manifest for garbage in group for manifest in garbage.manifests]
        tags = pinned(store) if made else {}  # also those that are newer than the garbage
        if any((m.step, m.attempt) in tags for m in made):
            return 0
        for garbage in group:
            _delete(store, garbage)
    if ends or (step, key) not in findings.leases:  # otherwise the lease's epoch is still needed
        forget_released(store, step, key)
    return sum(garbage.size for garbage in group)


def _delete_attempts(store: Store, place: Key, by_key: dict[Key, list[Garbage]]) -> int:
    """Delete the attempts at a key that nothing will commit, since no engine has its job, and take
    them from the garbage; return the bytes freed. No driver's work needs them, so no lease."""
    if store.read(store.job_path(*place)) is not None:
        return 0
    gone = [garbage for garbage in by_key[place] if garbage.kind is Kind.ATTEMPT]
    for garbage in gone:
        _delete(store, garbage)
    if left := [garbage for garbage in by_key[place] if garbage.kind is not Kind.ATTEMPT]:
        by_key[place] = left
    else:
        del by_key[place]
    return sum(garbage.size for garbage in gone)


def _delete(store: Store, garbage: Garbage) -> None:
    if garbage.kind is Kind.SCRATCH:  # scratch folders are local even if the store is remote
        for folder in garbage.folders:
            shutil.rmtree(folder, ignore_errors=True)
        return
    if garbage.kind is Kind.DATA:
        for manifest in garbage.manifests:
            store.evict(manifest)
    for file in garbage.files:
        store.objects.remove(file)
        if garbage.kind is Kind.ARTIFACT:  # a step without artifacts has no folder
            remove_if_empty(store, file.rpartition("/")[0])
    for folder in garbage.folders:
        store.objects.remove_tree(folder)
        remove_if_empty(store, folder.rpartition("/")[0])


def _delete_write(garbage: Garbage) -> int:
    """Delete what an interrupted write left; return the bytes freed, 0 if it cannot be deleted."""
    path = Path(garbage.files[0])
    try:
        if path.is_dir():  # a copy of a scratch folder
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:  # leftovers only cost space
        return 0
    return garbage.size
