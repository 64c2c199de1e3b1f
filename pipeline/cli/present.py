"""Finds the present code of the step that made an artifact, from the artifact's manifest.

The manifest names the step function and the types of its arguments, whose code is part of the key.
If one of them has moved to another module, it is looked up by its own name among the modules that
the project's script imports. The types of default values of later fields and parameters count too.

A manifest may be forged, so a module that it names is imported only if it is imported already,
ships with Temper, or belongs to the step in the current project; see :mod:`pipeline.cli.project`.
"""

import contextlib
import dataclasses
import importlib
import io
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.cli.project import Project
from pipeline.dag.artifact import Artifact, Kind
from pipeline.dag.canonical import Json, identity, resolve_reference
from pipeline.dag.step import StepFunction
from pipeline.errors import TemperError
from pipeline.installed import in_library
from pipeline.observed.discovery import Home, home_of
from pipeline.store.kinds import as_kind, is_known
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run, newest_runs
from pipeline.store.stored import is_reference
from pipeline.wire.lifeline import WORKER_ENVIRONMENT

_IMPORTING = threading.RLock()
"""Guards redirected output and environment variables, which are global to the process."""


_MOST_RUNS = 50
"""The most runs to search for one that had a step."""


class NotImportable(TemperError):
    """The step's code cannot be imported, or must not be."""


@dataclass(frozen=True)
class PresentCode:
    """The code that a step has now if it is called with arguments of an artifact's types.

    Attributes:
        made_by: like :attr:`pipeline.dag.step.Step.made_by`.
        code: digests of the source, by name; empty for a declared version without source.
        file: the file of the step function.
        home: the base that names of discovered dependencies are relative to.
    """

    made_by: dict[str, Json]
    code: Mapping[str, str]
    file: str
    home: Home


def present_code(manifest: Manifest, store: Store) -> PresentCode:
    """The present code of an artifact's step.

    Raises:
        NotImportable: the code cannot be imported, or must not be.
    """
    function, types = load(manifest, project_with(store, manifest.step))
    file = function.function.__code__.co_filename
    return PresentCode(function.made_by(types), function.code(types), file, home_of(function))


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


def load(manifest: Manifest, project: Project) -> tuple[StepFunction, frozenset[type]]:
    """The step function that made an artifact, and the types of the arguments that it received.

    Raises:
        NotImportable: one of them cannot be imported, or must not be.
    """
    if not manifest.function:
        raise NotImportable(f"the manifest of {manifest.name} names no function")

    def is_the_step(found: Any) -> bool:
        known = isinstance(found, StepFunction)
        return known and manifest.step in (found.name, *found.was)

    function = _found(manifest.function, is_the_step, manifest.step, manifest, project)
    types = {_type(reference, manifest, project) for reference in manifest.types}
    for cls in list(types):
        for before in _values_before(cls):
            identity(before, cls.__name__, types=types)
    recipe: Any = manifest.recipe
    for name in function.added.keys() - recipe.get("arguments", {}).keys():
        identity(function.added[name], f"{function.name}(added {name})", types=types)
    return function, frozenset(types)


def argument_types(manifest: Manifest) -> tuple[str, ...]:
    """The names of the types of an artifact's arguments, without their modules."""
    return tuple(sorted(reference.partition(":")[2] for reference in manifest.types))


def _type(reference: str, manifest: Manifest, project: Project) -> Any:
    name = reference.partition(":")[2]

    def is_the_type(found: Any) -> bool:
        return isinstance(found, type) and found.__qualname__ == name

    return _found(reference, is_the_type, name, manifest, project)


def _found(
    reference: str, is_it: Callable[[Any], bool], name: str, manifest: Manifest, project: Project
) -> Any:
    """The definition that a manifest names as ``module:name``, even if it has moved since."""
    reason = f"{reference} is something else now"
    try:
        _require_known(reference, manifest, project)
        if is_it(found := import_named(reference)):
            return found
    except NotImportable as error:
        reason = str(error)
    candidates = {id(found): found for found in _in_project(name, project) if is_it(found)}
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    if not candidates:
        raise NotImportable(f"{reason}, and the newest run's script imports no other {name}")
    raise NotImportable(f"{reason}, and there are {len(candidates)} others called {name}")


def _in_project(name: str, project: Project) -> Iterator[Any]:
    """The definitions of this name, and all step functions, in the modules of the project that its
    script imports."""
    if project.script is not None:
        with contextlib.suppress(NotImportable):
            import_named(f"{project.script.stem}:__name__")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is None or in_library(file):
            continue
        yield from (held for held in vars(module).values() if isinstance(held, StepFunction))
        outer, *inner = name.split(".")
        found: Any = vars(module).get(outer)
        for part in inner:
            found = getattr(found, part, None)
        yield found


def _values_before(definition: Any) -> Iterable[Any]:
    """The implicit earlier values of fields that were added later; their code is part of keys
    too."""
    if not dataclasses.is_dataclass(definition) or hasattr(definition, "identity"):
        return ()
    fields = dataclasses.fields(definition)
    return [f.metadata["before"] for f in fields if f.init and "before" in f.metadata]


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
