"""Calls a step function, in a worker or in each of its ranks: its code, arguments and output.

A step with one process and the ranks of a step with many processes share this code.
"""

import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.base.errors import TemperError, text_of
from pipeline.base.installed import SHIPPED_STEPS, in_library, settle
from pipeline.dag.artifact import Artifact, FolderPath
from pipeline.dag.canonical import resolve_reference, restore
from pipeline.dag.step import Metrics, StepFunction
from pipeline.observed import native
from pipeline.observed.discovery import discover, has_unseen, home_of
from pipeline.observed.observation import Observation
from pipeline.observed.path_filter import Rules
from pipeline.observed.scratch_dependencies import NO_EARLIER, go_on_from, has_results
from pipeline.observed.snapshot import Snapshot
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.manifest import Discovered, Manifest
from pipeline.wire.spec import InputSpec, Pause, StepSpec
from pipeline.worker.memory import keep_freed_memory
from pipeline.worker.process_cleanup import close_files_below, end_if_forked, restore_streams
from pipeline.worker.progress import ProgressWriter
from pipeline.worker.stopping import Stopping

RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy")


class Code:
    """The code of a step in its worker: the function, and what the step depends on.

    From here on the worker observes itself. The worker, and each process that it starts and that
    joins the observation, imports project code as it is now. So users may edit the source for the
    next experiment while this step continues with its own version.
    """

    def __init__(self, spec: StepSpec):
        self._spec, self._earlier = spec, NO_EARLIER
        module = spec.function.partition(":")[0]
        settle()
        try:
            self.observation = Observation.begin(_rules(spec, module))
        except OSError as error:
            raise TemperError(
                f"there is no room in {tempfile.gettempdir()} to note what the step depends on "
                f"({error}); make some, or set TMPDIR to another folder"
            ) from error
        snapshot = Snapshot(self.observation)
        snapshot.install()
        was_loaded = module in sys.modules
        try:
            self.function = _found(spec.function)
            if was_loaded:
                snapshot.add_loaded(module)
            snapshot.take()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "Code":
        return self

    def __exit__(self, *_: object) -> None:
        Snapshot.uninstall()
        self.observation.forget()

    def go_on_from(self, scratch: Path) -> bool:
        """Prepare scratch for the step. Return whether it holds results of earlier attempts; it is
        emptied if these depend on what has changed."""
        home = home_of(self.function, self._spec.arguments, self._spec.types)
        self._earlier, changes = go_on_from(
            scratch,
            self.observation,
            home,
            is_versioned=self.function.version is not None,
            is_shared=self._spec.nodes > 1,
        )
        if changes:
            print(f"begins anew, and not from its scratch: {'; '.join(changes)}", flush=True)
        return has_results(scratch)

    def discovered(self) -> Discovered:
        """The step's dependencies that are not in its key, once it has run."""
        self.observation.end()
        home = home_of(self.function, self._spec.arguments, self._spec.types)
        return discover(self.observation, home, self._earlier)

    def with_notice(self, metrics: Metrics) -> Metrics:
        """The metrics, with a notice if the step started a program of which nothing was seen."""
        if not has_unseen(self.observation):
            return metrics
        return {**metrics, "notices": [*metrics.get("notices", []), native.NOTICE]}


def join_step() -> None:
    """If a step started this process: import code as its worker does, and be observed."""
    if (observation := Observation.join()) is not None:
        settle()
        Snapshot(observation).install()


def call(
    function: StepFunction, spec: StepSpec, output: "WorkerOutput", inputs: Sequence[Artifact]
) -> Metrics:
    """Call the step function, and return its metrics. Raise `TemperError` if these cannot be
    stored."""
    arguments = {name: restore(value, inputs.__getitem__) for name, value in spec.arguments.items()}
    output.origins = dict(zip(inputs, spec.inputs, strict=True))
    started_in, path, worker = os.getcwd(), [*sys.path], os.getpid()
    keep_freed_memory()
    try:
        metrics = function.function(output, **arguments)
    except BaseException as error:
        end_if_forked(worker, error)
        if isinstance(error, Exception):
            raise
        raise TemperError(
            f"the step {_left(error)}; return its metrics instead, or raise an error that says "
            "what is wrong"
        ) from error
    finally:
        restore_streams()
    end_if_forked(worker)
    close_files_below(output.path)
    os.chdir(started_in)  # later checks may use relative paths,
    sys.path[:] = path  # and name modules as a planner finds them
    return checked_metrics(spec.step, {} if metrics is None else metrics)


def _left(error: BaseException) -> str:
    """How a step has left its function by an exception that Python ends programs with."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r})"
    said = text_of(error)
    return f"raised {type(error).__name__}{said and f': {said}'}"


def packages_in_use() -> dict[str, str]:
    """The versions of the recorded libraries that the step imported."""
    used = (name for name in RECORDED_PACKAGES if name in sys.modules)
    return {name: _version(name) for name in used}


_version = cache(metadata.version)
"""An imported library stays what it is; to ask takes longer than a small step."""


class WorkerOutput(FolderPath):
    """The ``out`` of a running step function; see :class:`pipeline.dag.step.Output`."""

    def __init__(
        self,
        store: Store,
        writer: ProgressWriter,
        path: Path,
        scratch: Path,
        stopping: Stopping,
        pause: Pause | None,
    ):
        self.path, self.scratch, self.catalog = path, scratch, Catalog(store)
        self.origins: Mapping[Artifact, InputSpec] = {}
        self._store, self._writer, self._stopping, self._pause = store, writer, stopping, pause

    @property
    def stopping(self) -> bool:
        return self._stopping.asked()

    def origin(self, artifact: Artifact) -> Manifest:
        path = self.origins[artifact].content.removeprefix(f"{self._store.root}/")
        _, step, key, attempt, *_ = path.split("/")
        made = (m for m in self.catalog.history(step) if (m.key, m.attempt) == (key, attempt))
        return next(made)

    def progress(self, done: float, total: float | None, metrics: Metrics | None = None) -> None:
        if self._pause is not None and self._pause.is_reached(done, metrics or {}):
            self._stopping.paused = True
        self._writer.progress(done, total, metrics)


def _rules(spec: StepSpec, module: str) -> Rules:
    """The rules that decide which files count as dependencies of the step."""
    store = Store(spec.store, is_patient=True)
    scratch = store.scratch_path(spec.step, spec.key, spec.epoch)
    inputs = [entry.content for entry in spec.inputs] if store.is_local else []
    urls = [url.removeprefix("file://") for url in spec.files]
    files = [url for url in urls if "://" not in url]
    known = [str(scratch), *inputs, *files, *([store.root] if store.is_local else [])]
    package = module.partition(".")[0]
    beside = map(os.path.dirname, map(os.path.abspath, files))
    return Rules.of(package, project_roots(package), known, beside)


def project_roots(package: str) -> list[str]:
    """The folders of project code for a step of this package: all folders in ``sys.path`` that are
    no libraries, the package itself, wherever it lies, and its folder if only a finder of its own
    finds it, as some editable installs."""
    folders = [entry for entry in sys.path if os.path.isdir(entry)]
    with contextlib.suppress(OSError):  # the working folder may have been deleted
        folders.append(os.getcwd())
    folders += filter(None, [_folder_of(package)])
    roots = [folder for folder in folders if not in_library(f"{folder}/any.py")]
    if (spec_of := PathFinder.find_spec(package)) and in_library(spec_of.origin or ""):
        roots += spec_of.submodule_search_locations or ()
    return [*roots, SHIPPED_STEPS]


def _folder_of(package: str) -> str | None:
    """The folder from which a package or a single module is imported."""
    with contextlib.suppress(ImportError, ValueError):  # the latter of a module without a spec
        spec = find_spec(package)
        if spec is not None and spec.origin and os.path.isfile(spec.origin):
            return str(Path(spec.origin).parents[bool(spec.submodule_search_locations)])
    return None


def _found(reference: str) -> StepFunction:
    """The step function.

    Raises:
        TemperError: its module has it no more.
    """
    try:
        return resolve_reference(reference)
    except AttributeError as error:
        if error.obj is sys.modules.get(reference.partition(":")[0]):
            raise TemperError(
                f"{reference} is not there any more: the code was edited while the experiment ran; "
                "run it again"
            ) from error
        raise


def checked_metrics(step: str, metrics: Any) -> Metrics:
    """The metrics, with plain numbers in place of numpy's and torch's; refuse those that cannot be
    stored or shown, because they would break every later run."""
    if not isinstance(metrics, dict) or not all(isinstance(name, str) for name in metrics):
        raise _unkept(step, f"{metrics!r} is no dict with names")
    plain: Metrics = {name: _plain(value) for name, value in metrics.items()}
    for name, value in plain.items():
        if (why := _unshown(value)) is not None:
            raise _unkept(step, f"{name} is {why}")
        try:
            text = json.dumps({name: value}, allow_nan=False, ensure_ascii=False)
            text.encode()
            json.loads(text, object_pairs_hook=_with_different_names)
        except (TypeError, ValueError) as error:
            raise _unkept(step, f"{name} is {value!r}: {error}") from error
    notices = plain.get("notices", [])
    if not (isinstance(notices, list) and all(isinstance(n, str) for n in notices)):
        raise _unkept(step, "notices is not a list of strings")
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if getattr(value, "shape", None) == () else value


def _with_different_names(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a dict with two keys that are one in JSON, such as ``1`` and ``"1"``."""
    known: set[str] = set()
    for name, _ in pairs:
        if name in known:
            raise ValueError(f"two of its keys are {name!r} in JSON")
        known.add(name)


def _unshown(value: Any) -> str | None:
    """Why a value cannot be shown: a whole number beyond floats, or an interval that ends before it
    begins."""
    if isinstance(value, dict):
        low, high = value.get("low"), value.get("high")
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            return f"an interval from {low!r} to {high!r}, whose low is above its high"
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return next(filter(None, map(_unshown, parts)), None)
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        digits = math.floor(math.log10(abs(value))) + 1  # as text, Python has 4300 at most
        return f"a whole number of {digits} digits, and no float is so large"
    return None


def _unkept(step: str, why: str) -> TemperError:
    return TemperError(
        f"step {step} returned metrics that cannot be kept: {why}; return a dict of numbers, "
        "strings, lists and dicts"
    )
