"""Runs one attempt of one step: ``python -m pipeline.worker SPEC``.

The worker reads the spec from the store, runs the step function, and writes its files and a
report into the attempt's folder. It never commits: the driver does, once it has the report. So a
worker may run on any machine that sees the store and has the code, and may die at any moment.
"""

import contextlib
import importlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePosixPath
from typing import Any

import blake3
import fsspec

from pipeline.artifact import Artifact
from pipeline.canonical import resolve_reference, restore
from pipeline.code.modules import in_library
from pipeline.errors import TemperError
from pipeline.inputs import forget_sources, source_identity
from pipeline.lifeline import exit_with_driver
from pipeline.manifest import FileEntry
from pipeline.spec import InputSpec, Report, StepSpec
from pipeline.step import Metrics, StepFunction, look_again
from pipeline.store import Store
from pipeline.why import code_changes

RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy")
_STARTS_AFRESH = {"multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver"}
"""Loaded by a process that started children which import the code again."""
PROGRESS_SECONDS = 0.3
REMOTE_PROGRESS_SECONDS = 5.0


class DamagedInput(TemperError):
    """An input's bytes are not those that were committed."""

    def __init__(self, position: int, message: str):
        super().__init__(message)
        self.position = position


def main(spec_url: str) -> int:
    """Run the attempt that a spec describes; 0 if it can be committed."""
    exit_with_driver()
    _compile_project_code()
    fs, path = fsspec.url_to_fs(spec_url)
    spec = StepSpec.from_json(fs.cat_file(path))
    store = Store(spec.store)
    try:
        report = run_attempt(spec, store)
    except Exception as error:
        traceback.print_exc()
        damaged = error.position if isinstance(error, DamagedInput) else None
        report = Report(_one_line(error), damaged, provenance=_provenance())
    store.objects.replace(f"{spec.attempt}/report.json", report.to_json())
    return 0 if report.error is None else 1


def run_attempt(spec: StepSpec, store: Store) -> Report:
    """Run the step function on its inputs and describe what it wrote."""
    step_function: StepFunction = resolve_reference(spec.function)
    loaded = _load(_check_code(spec, step_function))
    code = _check_code(spec, step_function)
    with contextlib.ExitStack() as stack:
        output = _WorkerOutput(store, spec, stack.enter_context(_content_folder(store, spec)))
        artifacts = [
            stack.enter_context(_local_input(store, position, entry))
            for position, entry in enumerate(spec.inputs)
        ]
        arguments = {
            name: restore(value, artifacts.__getitem__) for name, value in spec.arguments.items()
        }
        started_in = os.getcwd()
        metrics = step_function.function(output, **arguments) or {}
        os.chdir(started_in)  # what is checked below may be named relative to it
        _check_metrics(spec.step, metrics)
        _check_sources(spec)
        if not loaded or _STARTS_AFRESH & sys.modules.keys():
            _check_code(spec, step_function)
        files = _describe_files(output.path)
        if not store.is_local:
            store.objects.upload(output.path, f"{spec.attempt}/content")
    return Report(files=files, metrics=metrics, provenance=_provenance(), code=code)


class _WorkerOutput:
    """The ``out`` of a running step function; see :class:`pipeline.step.Output`."""

    def __init__(self, store: Store, spec: StepSpec, path: Path):
        self.path = path
        self.scratch = store.scratch_path(spec.step, spec.key, spec.epoch)
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._store = store
        self._progress_path = store.progress_path(spec.step, spec.key)
        self._interval = PROGRESS_SECONDS if store.is_local else REMOTE_PROGRESS_SECONDS
        self._last = 0.0

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


@contextlib.contextmanager
def _content_folder(store: Store, spec: StepSpec) -> Iterator[Path]:
    if store.is_local:
        folder = Path(spec.attempt) / "content"
        folder.mkdir(parents=True)
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="temper-output-") as folder:
            yield Path(folder)


@contextlib.contextmanager
def _local_input(store: Store, position: int, entry: InputSpec) -> Iterator[Artifact]:
    def artifact(path: str) -> Artifact:
        _check_input(position, entry, Path(path))
        kind: type[Artifact] = resolve_reference(entry.kind)
        return kind(Path(path), entry.step, entry.digest)

    if store.is_local:
        yield artifact(entry.content)
    else:
        with tempfile.TemporaryDirectory(prefix="temper-input-") as folder:
            store.objects.download(entry.content, Path(folder))
            yield artifact(folder)


def _check_input(position: int, entry: InputSpec, folder: Path) -> None:
    """Refuse an input whose files are not those that were committed, and no others."""
    present = {str(PurePosixPath(p.relative_to(folder))) for p in folder.rglob("*") if p.is_file()}
    others = [name for name in sorted(present - entry.files.keys()) if not _is_hidden(name)]
    if others:
        raise DamagedInput(position, f"the artifact of {entry.step} holds {others[0]} besides")
    for name, expected in entry.files.items():
        path = folder / name
        if not path.is_file() or _describe(path) != expected:
            raise DamagedInput(position, f"{name} of the artifact of {entry.step} is damaged")


def _is_hidden(name: str) -> bool:
    """What a desktop or file system left there: no reader looks at it."""
    return any(part.startswith(".") for part in name.split("/"))


def _describe(path: Path) -> FileEntry:
    hasher = blake3.blake3(max_threads=blake3.blake3.AUTO).update_mmap(path)
    return FileEntry(path.stat().st_size, hasher.hexdigest())


def _describe_files(folder: Path) -> dict[str, FileEntry]:
    files = {}
    if folder.is_symlink() or not folder.is_dir():
        raise TemperError("the step removed its output folder; write into it instead")
    os.umask(mask := os.umask(0o022))
    for path in sorted(folder.rglob("*")):
        name = str(PurePosixPath(path.relative_to(folder)))
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise TemperError(f"the step wrote {name}, which is no regular file; write a copy")
        if path.stat().st_nlink > 1:  # a file of somebody else's, who may write to it
            shutil.copyfile(path, copy := path.with_name(f".{path.name}.copy"))
            os.replace(copy, path)
        path.chmod(0o444 & ~mask)  # finished: to be read by whoever may read the store
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # on disk before a manifest says it is
        files[name] = _describe(path)
    return files


def _check_sources(spec: StepSpec) -> None:
    """Refuse a result made from a file that is no longer what the key says it was."""
    forget_sources()
    for url, identity in spec.files.items():
        if source_identity(url) != identity:
            raise TemperError(f"{url} changed while the experiment ran; run it again")


def _compile_project_code() -> None:
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


def _provenance() -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in RECORDED_PACKAGES if name in sys.modules}
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": versions,
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, TemperError | ValueError | FileNotFoundError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a thread that the step left behind keeps nobody waiting, and writes no more
