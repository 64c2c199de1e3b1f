"""Runs one attempt of one step: ``python -m pipeline.worker SPEC``.

The worker reads the spec from the store, runs the step function, and writes its files and a
report into the attempt's folder. It never commits: the driver does, once it has the report. So a
worker may run on any machine that sees the store and has the code, and may die at any moment.

There is one worker on each node of a step. It stages and checks inputs and scratch once for all
ranks of the node, starts them where there are several, and passes on the request to leave. The
first node's worker reports; the others report only what made them fail. ``docs/workers.md`` is the
contract for whoever writes another.
"""

import contextlib
import os
import platform
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import blake3
import fsspec

from pipeline.artifact import Artifact
from pipeline.calling import (
    Code,
    WorkerOutput,
    call,
    compile_project_code,
    one_line,
    packages_in_use,
)
from pipeline.canonical import resolve_reference
from pipeline.errors import TemperError
from pipeline.inputs import forget_sources, source_identity
from pipeline.launchers.protocol import PREEMPTED, REFUSED
from pipeline.lifeline import exit_with_driver
from pipeline.manifest import FileEntry
from pipeline.presence import beating, begin, join
from pipeline.ranks import ALONE, Node, RankResult, run_ranks, this_node
from pipeline.spec import InputSpec, Report, StepSpec
from pipeline.staging import Staging
from pipeline.stopping import Stopping
from pipeline.store import Store

PEERS_SECONDS = 5.0
"""In which all nodes of a step learn that they are to leave."""


class DamagedInput(TemperError):
    """An input's bytes are not those that were committed."""

    def __init__(self, position: int, message: str):
        super().__init__(message)
        self.position = position


def main(spec_url: str, stopping: Stopping | None = None) -> int:
    """Run the attempt that a spec describes; 0 if it can be committed.

    Other statuses: 1 after an error, 75 when told to leave, 76 if the attempt is not this one's.
    """
    exit_with_driver()
    compile_project_code()
    fs, path = fsspec.url_to_fs(spec_url)
    spec = StepSpec.from_json(fs.cat_file(path))
    store = Store(spec.store)
    stopping = stopping or Stopping()
    stopping.grace = spec.grace
    if spec.seconds is not None:
        stopping.ask_after(spec.seconds)
    node = this_node()
    claim = begin if node.index == 0 else join
    if spec.detached and not claim(store, spec.attempt, node.master):
        print("this attempt was begun by another process, or given up", flush=True)
        return REFUSED
    if node.index > 0:
        return _help(spec, store, stopping, node)
    with beating(store, spec.attempt) if spec.detached else contextlib.nullcontext():
        try:
            report = run_attempt(spec, store, stopping, node)
        except Exception as error:
            traceback.print_exc()
            damaged = error.position if isinstance(error, DamagedInput) else None
            told = _is_told_to_leave(spec, stopping)
            provenance = _provenance(packages_in_use())
            report = Report(one_line(error), damaged, told, provenance=provenance)
        store.objects.replace(f"{spec.attempt}/report.json", report.to_json())
    if report.error is None:
        return 0
    return PREEMPTED if report.preempted else 1


def run_attempt(spec: StepSpec, store: Store, stopping: Stopping, node: Node = ALONE) -> Report:
    """Run the step function on its inputs and describe what it wrote."""
    code = _code(spec)
    with contextlib.ExitStack() as stack:
        content = stack.enter_context(_content_folder(store, spec))
        staging, result = _run(spec, store, stopping, node, code, content, stack)
        _check_sources(spec)
        code.check_again()
        files = _describe_files(content)
        if not store.is_local:
            store.objects.upload(content, f"{spec.attempt}/content")
    return Report(
        files=files,
        metrics=result.metrics,
        provenance=_provenance(result.packages),
        code=code.digests,
        staged=staging is not None and staging.is_used,
    )


def _help(spec: StepSpec, store: Store, stopping: Stopping, node: Node) -> int:
    """Run the ranks of a node other than the first, which reports unless this one fails."""
    try:
        with contextlib.ExitStack() as stack:
            content = stack.enter_context(_content_folder(store, spec))
            _run(spec, store, stopping, node, _code(spec), content, stack)
    except Exception as error:
        traceback.print_exc()
        if _is_told_to_leave(spec, stopping):
            return PREEMPTED
        report = Report(one_line(error), provenance=_provenance(packages_in_use()))
        store.objects.replace(f"{spec.attempt}/report-{node.index}.json", report.to_json())
        return 1
    return 0


def _is_told_to_leave(spec: StepSpec, stopping: Stopping) -> bool:
    """Whether that is why a step has failed. On several nodes, the others may have been told a
    moment ago, and have left this one alone."""
    return stopping.is_asked_within(PEERS_SECONDS if spec.nodes > 1 else 0.0)


def _code(spec: StepSpec) -> Code:
    return Code(spec, runs_here=_is_one_process(spec))


def _is_one_process(spec: StepSpec) -> bool:
    return spec.nodes * spec.processes == 1


def _run(
    spec: StepSpec,
    store: Store,
    stopping: Stopping,
    node: Node,
    code: Code,
    content: Path,
    stack: contextlib.ExitStack,
) -> tuple[Staging | None, RankResult]:
    """Call the step function in this process, or in the ranks of this node."""
    inputs = [
        stack.enter_context(_local_input(store, position, entry))
        for position, entry in enumerate(spec.inputs)
    ]
    scratch, staging = store.scratch_path(spec.step, spec.key, spec.epoch), None
    with contextlib.ExitStack() as keeping:
        if not store.is_local:
            remote = store.staged_scratch(spec.step, spec.key)
            staging = Staging(store.objects, scratch, remote, spec.epoch, node.index, spec.nodes)
            keeping.enter_context(staging.running())
            stopping.leave = staging.keep_at_last
        scratch.mkdir(parents=True, exist_ok=True)
        if _is_one_process(spec):
            output = WorkerOutput(store, spec, content, scratch, stopping)
            result = RankResult(call(code, spec, output, inputs), packages_in_use())
        else:
            result = run_ranks(spec, node, content, scratch, inputs, stopping)
    stopping.heeded = True  # what is left to do fits into the grace
    return staging, result


@contextlib.contextmanager
def _content_folder(store: Store, spec: StepSpec) -> Iterator[Path]:
    if store.is_local:
        folder = Path(spec.attempt) / "content"
        folder.mkdir(parents=True, exist_ok=spec.nodes > 1)
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


def _provenance(packages: Mapping[str, str]) -> dict[str, Any]:
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": packages,
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


if __name__ == "__main__":
    listening = Stopping()
    listening.listen()
    status = main(sys.argv[1], listening)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a thread that the step left behind keeps nobody waiting, and writes no more
