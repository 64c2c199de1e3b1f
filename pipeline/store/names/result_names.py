"""Finds results by name: ``EXPERIMENT/RESULT`` is a result of the newest run of an experiment.

The run records contain which artifact that is. So names work alike on every store, and an artifact
whose data is gone is reported as such.

On a local store, there are also links for people and other programs:

    latest/dpo/export -> ../../attempts/export_hf/<key>/<attempt>/content

A run makes them at its end. Temper itself follows no link: a link does not protect an artifact from
being deleted, and a forged link could lead out of the store. Object stores have no links.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from pipeline.base.errors import TemperError
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.store.objects import LocalObjects
from pipeline.store.runs import FINISHED_STATES, Run, newest_runs

_NO_FILE_NAME = re.compile(r"[%/\x00-\x1f\x7f]|^\.")


def find_result(catalog: Catalog, name: str) -> Manifest:
    """The artifact with the name ``EXPERIMENT/RESULT``.

    Raises:
        TemperError: no recorded run made it; the message lists the known results.
    """
    experiment, _, result = name.partition("/")
    results: dict[str, None] = {}
    experiments: dict[str, None] = {}
    for run in newest_runs(catalog.store):
        experiments[run.experiment] = None
        if run.experiment != experiment:
            continue
        results |= dict.fromkeys(run.roots)
        if (place := _made(run, result)) is not None:
            if (found := catalog.latest(*place)) is None:
                raise TemperError(f"{name} was collected; run the experiment again to make it")
            return found
    if not results:
        known = ", ".join(experiments) or "none"
        raise TemperError(f"no run of {experiment!r} is on record; experiments on record: {known}")
    if result in results:
        raise TemperError(f"{name} was never made: no run that has it came to its end")
    raise TemperError(f"{experiment} has no result {result!r}; it has: {', '.join(results)}")


def _made(run: Run, result: str) -> tuple[str, str] | None:
    """The step and key of the result of this name in a run."""
    if (fingerprint := run.roots.get(result)) is None:
        return None
    for entry in run.steps:
        is_finished = entry.get("state") in FINISHED_STATES and entry.get("key")
        if is_finished and entry.get("fingerprint") == fingerprint:
            return entry["step"], entry["key"]
    return None


def link_results(store: Store, experiment: str, results: Mapping[str, Manifest]) -> None:
    """Link every result under ``latest/``. It never fails: run records hold the same."""
    if not isinstance(store.objects, LocalObjects):
        return
    folder = f"{store.root}/latest/{_file_name(experiment)}"
    for name, manifest in results.items():
        with contextlib.suppress(OSError):
            store.objects.require_own(folder)
            os.makedirs(folder, exist_ok=True)
            content = os.path.realpath(store.content_path(manifest))
            target = os.path.relpath(content, os.path.realpath(folder))
            temporary = f"{folder}/.{secrets.token_hex(4)}"
            os.symlink(target, temporary)
            try:
                os.replace(temporary, f"{folder}/{_file_name(name)}")
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)


def forget_broken_links(store: Store) -> None:
    """Remove links to deleted data. It never fails, since a broken link does no harm."""
    if not isinstance(store.objects, LocalObjects):
        return
    for link in Path(store.root, "latest").glob("*/*"):
        with contextlib.suppress(OSError):
            store.objects.require_own(str(link.parent))
            if link.is_symlink() and not link.exists():
                link.unlink()


def _file_name(name: str) -> str:
    """A name as one component of a path; different names give different components."""
    return _NO_FILE_NAME.sub(lambda found: f"%{ord(found[0]):02X}", name)
