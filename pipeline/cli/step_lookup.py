"""Finds the present code of the step that made an artifact, from the artifact's manifest.

The manifest names the step function and the classes of its arguments. One that has moved to another
module is looked up by its own name in the modules that the script imports, and in those beside it.

A manifest may be forged, so a module that it names is imported only if it is imported already,
ships with Temper, or belongs to the step in the current project; see :mod:`pipeline.cli.project`.
"""

import contextlib
import importlib
import io
import itertools
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.cli.project import Project
from pipeline.dag.artifact import Artifact, Kind
from pipeline.dag.canonical import resolve_reference
from pipeline.dag.step import StepFunction
from pipeline.observed.discovery import Home
from pipeline.store.kinds import as_kind, is_known
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run, newest_runs
from pipeline.store.untrusted_input import is_reference
from pipeline.trace.modules import Modules
from pipeline.wire.lifeline import WORKER_ENVIRONMENT

_IMPORTING = threading.RLock()
"""Guards redirected output and environment variables, which are global to the process."""


_MOST_RUNS = 50
"""The most runs to search for one that had a step."""


class NotImportable(TemperError):
    """The step's code cannot be imported, or must not be."""


def home_in(project: Project, manifest: Manifest) -> Home:
    """The home of an artifact's step function; that and its classes may have moved. Nothing is
    imported.

    Raises:
        NotImportable: the step function is not found, or in several modules.
    """
    if not is_reference(manifest.function):
        raise NotImportable(f"the manifest of {manifest.name} names no function")
    reference = project.place_of(manifest.function, manifest.step) or manifest.function
    module, _, function = reference.partition(":")
    file = project.file_of(module) or Modules(module).file(module)
    if file is None:
        raise NotImportable(
            f"{manifest.function} is not found, nor is one other step {function}; run this in the "
            "folder of its script"
        )
    types = (project.place_of(name) or name for name in manifest.discovered.entry[1:])
    home = Home.of(module, str(file))
    return replace(home, function=function, types=tuple(sorted(types)))


def kind_in(project: Project, manifest: Manifest) -> Kind:
    """The kind of an artifact in a project; plain `Artifact` if its step declares none.

    Raises:
        NotImportable: the kind cannot be imported, or must not be.
    """
    if manifest.kind is None:
        return Artifact
    _require_known(manifest.kind, manifest, project)
    try:
        return as_kind(manifest.kind, import_named)
    except NotImportable:
        raise
    except TemperError as error:
        raise NotImportable(str(error)) from error


def project_with(store: Store, step: str) -> Project:
    """The project, with the script of the newest run that had the step, or else of the newest
    run."""
    runs = list(itertools.islice(newest_runs(store), _MOST_RUNS))
    had_it = [run for run in runs if any(entry["step"] == step for entry in run.steps)]
    return project_of([*had_it[:1], *runs[:1]])


def project_of(runs: Iterable[Run]) -> Project:
    """The project, with the script of the first of these runs that lies in it. From then on, its
    modules can be imported."""
    projects = [Project(run.command[1] if len(run.command) > 1 else "") for run in runs]
    project = next((p for p in projects if p.script is not None), None) or Project()
    sys.path[:0] = [folder for folder in project.folders if folder not in sys.path]
    importlib.invalidate_caches()
    return project


def _require_known(reference: object, manifest: Manifest, project: Project) -> None:
    """Refuse to import a module that a store names and the project does not contain.

    Raises:
        NotImportable: the reference is malformed, or its module is no part of the project.
    """
    if not is_reference(reference):
        raise NotImportable(f"{reference!r:.80} is no name of a definition")
    assert isinstance(reference, str)
    if is_known(reference):
        return
    module = reference.partition(":")[0]
    function = manifest.function
    if not is_reference(function):
        raise NotImportable(f"the manifest of {manifest.name} names no function")
    home, _, step = function.partition(":")
    is_step = _is_step_here(function) or project.has_step(home, step)
    if is_step and (reference == function or project.belongs(module, home)):
        return
    place = project.file_of(module)
    where = f"{module} is not found here" if place is None else f"{place} is not part of its step"
    raise NotImportable(
        f"{reference} cannot be imported only because a store names it ({where}); "
        "go to the folder of its project, and see that its experiment imports it"
    )


def _is_step_here(reference: str) -> bool:
    """Whether a module that is imported already has this step function."""
    found: Any = sys.modules.get(reference.partition(":")[0])
    return isinstance(getattr(found, reference.partition(":")[2], None), StepFunction)


def import_named(reference: str) -> Any:
    """Import what ``module:name`` refers to.

    The module may be a script: its output is discarded, and it must not start a run.

    Raises:
        NotImportable: importing it fails.
    """
    with _IMPORTING:
        before = os.environ.get(WORKER_ENVIRONMENT)
        os.environ[WORKER_ENVIRONMENT] = "1"
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return resolve_reference(reference)
        except (Exception, SystemExit) as error:  # importing runs other people's code
            reason = " ".join(str(error).split()) or type(error).__name__
            raise NotImportable(f"{reference} cannot be imported ({reason})") from error
        finally:
            if before is None:
                del os.environ[WORKER_ENVIRONMENT]
            else:
                os.environ[WORKER_ENVIRONMENT] = before
