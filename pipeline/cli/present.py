"""The code that an artifact's step has now, found from what its manifest says of it.

The step function is imported by the name in the recipe. The types of its arguments, whose code
belongs to it, are those that the recipe is tagged with, and those of values that stand for fields
and parameters which were added later and left out of it.
"""

import contextlib
import dataclasses
import importlib
import io
import itertools
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.artifact import Artifact, Kind
from pipeline.canonical import Json, identity, resolve_reference
from pipeline.cli.runs import Run, newest_runs
from pipeline.errors import TemperError
from pipeline.lifeline import WORKER_ENVIRONMENT
from pipeline.manifest import Manifest
from pipeline.step import StepFunction
from pipeline.store import Store

_IMPORTING = threading.RLock()
"""Where output goes, and what modules are told, is the whole process's: one thread at a time."""


class NotImportable(TemperError):
    """The step's code cannot be looked at from here."""


@dataclass(frozen=True)
class PresentCode:
    """What a step called with an artifact's arguments would be made by now.

    Attributes:
        made_by: as :attr:`pipeline.step.Step.made_by`.
        code: digests of the source, by name; empty for a declared version without source.
        file: where the step function is.
    """

    made_by: dict[str, Json]
    code: Mapping[str, str]
    file: str


def present_code(manifest: Manifest, store: Store) -> PresentCode:
    """The code of an artifact's step as it is now.

    Raises:
        NotImportable: it cannot be imported; says why.
    """
    _search_where_it_ran(store, manifest.step)
    function, types = load(manifest)
    file = function.function.__code__.co_filename
    return PresentCode(function.made_by(types), function.code(types), file)


def present_kind(manifest: Manifest, store: Store) -> Kind:
    """The kind of an artifact as it is now: plain `Artifact` for one that was given none.

    Raises:
        NotImportable: it cannot be imported; says why.
    """
    if manifest.kind is None:
        return Artifact
    _search_where_it_ran(store, manifest.step)
    return import_named(manifest.kind)


def _search_where_it_ran(store: Store, step: str) -> None:
    """Let modules be found as by the newest run that had the step."""
    runs = (run for run in newest_runs(store) if any(e["step"] == step for e in run.steps))
    search_where_they_ran(run for run in itertools.islice(runs, 1))


def search_where_they_ran(runs: Iterable[Run]) -> None:
    """Let modules be found as by these runs: in the same place below the present working
    directory, if a run's script is there, or else where it was."""
    folders = [*(folder for run in runs for folder in run.module_folders()), os.getcwd()]
    sys.path[:0] = [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
    importlib.invalidate_caches()


def load(manifest: Manifest) -> tuple[StepFunction, frozenset[type]]:
    """The step function that made an artifact, and the types of the arguments it had.

    Raises:
        NotImportable: as it says.
    """
    recipe: Any = manifest.recipe
    reference = recipe.get("function")
    if not reference:
        raise NotImportable(f"the manifest of {manifest.name} names no function")
    function = import_named(reference)
    if not isinstance(function, StepFunction):
        raise NotImportable(f"{reference} is no step function any more")
    return function, frozenset(_types(recipe, function))


def argument_types(manifest: Manifest) -> tuple[str, ...]:
    """The step function of an artifact and the types of its arguments, by name."""
    recipe: Any = manifest.recipe
    tags = {name if tag == "$type" else name.rpartition(".")[0] for tag, name in _tags(recipe)}
    return (str(recipe.get("function")), *sorted(tags))


def _types(recipe: Any, function: StepFunction) -> set[type]:
    types: set[type] = set()
    for tag, tagged in _tags(recipe):
        found = import_named(tagged if tag == "$type" else tagged.rpartition(".")[0])
        types.add(found)
        for before in _values_before(found) if tag == "$type" else ():
            identity(before, found.__name__, types=types)
    for name in function.added.keys() - recipe["arguments"].keys():
        identity(function.added[name], f"{function.name}(added {name})", types=types)
    return types


def _tags(data: Any) -> Iterator[tuple[str, str]]:
    if isinstance(data, list):
        for item in data:
            yield from _tags(item)
    elif isinstance(data, dict):
        for name, item in data.items():
            if name in ("$type", "$enum"):
                yield name, item
            else:
                yield from _tags(item)


def _values_before(definition: Any) -> Iterable[Any]:
    """The values that fields added later implicitly had, which bear on the code too."""
    if not dataclasses.is_dataclass(definition) or hasattr(definition, "identity"):
        return ()
    fields = dataclasses.fields(definition)
    return [f.metadata["before"] for f in fields if f.init and "before" in f.metadata]


def import_named(reference: str) -> Any:
    """What ``module:name`` is, imported without letting the module say or start anything: it may be
    a script.

    Raises:
        NotImportable: as it says.
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
