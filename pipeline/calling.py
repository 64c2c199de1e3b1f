"""Calling a step function, in a worker or in each of its ranks: its code, arguments and output.

What happens here is the same for a step of one process and for every rank of one with many.
"""

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from pipeline.artifact import Artifact
from pipeline.canonical import resolve_reference, restore
from pipeline.catalog import Catalog
from pipeline.code.modules import in_library
from pipeline.errors import TemperError
from pipeline.manifest import Manifest
from pipeline.spec import InputSpec, StepSpec
from pipeline.step import Metrics, StepFunction, look_again
from pipeline.stopping import Stopping
from pipeline.store import Store
from pipeline.why import code_changes

_STARTS_AFRESH = {"multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver"}
"""Loaded by a process that started children which import the code again."""
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy")
PROGRESS_SECONDS = 0.3
REMOTE_PROGRESS_SECONDS = 5.0


class Code:
    """The code of a step in this process: imported, and what the key says it is.

    Args:
        runs_here: the step is called in this process. If not, it is in its ranks, which import what
            it needs and look for themselves: torch and the like are slow to import in vain.

    Raises:
        TemperError: it was edited since the experiment began.
    """

    def __init__(self, spec: StepSpec, runs_here: bool = True):
        self._spec = spec
        self._runs_here = runs_here
        self.function: StepFunction = resolve_reference(spec.function)
        self.digests = _check_code(spec, self.function)
        if runs_here:
            self._is_loaded = _load(self.digests)
            self.digests = _check_code(spec, self.function)

    def check_again(self) -> None:
        """Look again, once the step has run, if it may have read its source meanwhile.

        Raises:
            TemperError: it was edited.
        """
        if self._runs_here and (not self._is_loaded or _STARTS_AFRESH & sys.modules.keys()):
            _check_code(self._spec, self.function)


def call(code: Code, spec: StepSpec, output: "WorkerOutput", inputs: Sequence[Artifact]) -> Metrics:
    """Call the step function; its metrics.

    Raises:
        TemperError: the metrics cannot be kept.
    """
    arguments = {name: restore(value, inputs.__getitem__) for name, value in spec.arguments.items()}
    output.origins = dict(zip(inputs, spec.inputs, strict=True))
    started_in = os.getcwd()
    metrics = code.function.function(output, **arguments) or {}
    os.chdir(started_in)  # what is checked after this may be named relative to it
    _check_metrics(spec.step, metrics)
    return metrics


def packages_in_use() -> dict[str, str]:
    """The versions of the libraries that are recorded with a result, as far as it imported them."""
    used = (name for name in RECORDED_PACKAGES if name in sys.modules)
    return {name: metadata.version(name) for name in used}


class WorkerOutput:
    """The ``out`` of a running step function; see :class:`pipeline.step.Output`."""

    def __init__(self, store: Store, spec: StepSpec, path: Path, scratch: Path, stopping: Stopping):
        self.path = path
        self.scratch = scratch
        self.catalog = Catalog(store)
        self.origins: Mapping[Artifact, InputSpec] = {}
        self._stopping = stopping
        self._store = store
        self._progress_path = store.progress_path(spec.step, spec.key)
        self._interval = PROGRESS_SECONDS if store.is_local else REMOTE_PROGRESS_SECONDS
        self._last = 0.0

    @property
    def stopping(self) -> bool:
        return self._stopping.asked()

    def origin(self, artifact: Artifact) -> Manifest:
        path = self.origins[artifact].content.removeprefix(f"{self._store.root}/")
        _, step, key, attempt, *_ = path.split("/")
        made = (m for m in self.catalog.history(step) if (m.key, m.attempt) == (key, attempt))
        return next(made)

    def progress(self, done: float, total: float | None, metrics: Metrics | None = None) -> None:
        now = time.monotonic()
        if now - self._last < self._interval and done != total:
            return
        self._last = now
        # only for display: never a reason to fail
        with contextlib.suppress(OSError, TypeError, ValueError):
            of = None if total is None else float(total)
            data = {"done": float(done), "total": of, "metrics": dict(metrics or {})}
            self._store.objects.replace(self._progress_path, json.dumps(data).encode())


def compile_project_code() -> None:
    """Import project code from its source, whatever lies in ``__pycache__``.

    Python takes a compiled file for current by size and time in whole seconds, which an edit may
    leave as they were; the key is made from the source.
    """
    cached = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> Any:
        path = self.get_filename(fullname)
        if in_library(path):
            return cached(self, fullname)
        return self.source_to_code(self.get_data(path), path)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def _load(code: Iterable[str]) -> bool:
    """Import all modules of a step's code; true if that worked.

    A step often imports its machinery in its function. Once all of it is loaded, the source may be
    edited for the next experiment while this one goes on with what it was started with.
    """
    try:
        for module in {name.partition(":")[0] for name in code}:
            importlib.import_module(module)
    except Exception:  # it will be said when it is used, if it is
        return False
    return True


def _check_code(spec: StepSpec, function: StepFunction) -> dict[str, str]:
    """The source that runs; refuses one that is no longer what the key says it was."""
    look_again()
    code = dict(function.code(frozenset(map(resolve_reference, spec.types))))
    if spec.code is not None and code != spec.code:
        changes = ", ".join(code_changes(spec.code, code)[:3])
        raise TemperError(
            f"code was edited while the experiment ran ({changes}); run it again, or undo the edit "
            "and it goes on from its scratch"
        )
    return code


def _check_metrics(step: str, metrics: Any) -> None:
    """Refuse what could not be stored or shown; it would spoil every later run."""
    try:
        if not isinstance(metrics, dict) or not all(isinstance(name, str) for name in metrics):
            raise TypeError("not a dict with names")
        json.dumps(metrics, allow_nan=False, ensure_ascii=False).encode()
        notices = metrics.get("notices", [])
        if not (isinstance(notices, list) and all(isinstance(n, str) for n in notices)):
            raise TypeError("notices is not a list of strings")
    except (TypeError, ValueError) as error:
        raise TemperError(
            f"step {step} returned metrics that cannot be kept ({error}): {metrics!r}; "
            "return a dict of numbers, strings, lists and dicts"
        ) from error


def one_line(error: Exception) -> str:
    """What went wrong, for a report."""
    text = " ".join(str(error).split())
    if isinstance(error, TemperError | ValueError | FileNotFoundError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
