"""Runs one attempt of one step: ``python -m pipeline.worker.attempt SPEC``.

The worker reads the spec from the store, runs the step function, and writes the files and a report
into the attempt's folder. It never commits: the driver commits after it has read the report. So a
worker can run on any machine that reaches the store and has the code, and may die at any moment.

A step has one worker on each node. The worker stages and checks inputs and scratch once for all
ranks of its node, starts the ranks if there are several, and forwards a request to stop. The first
node's worker writes the report; the others report only their own failure. ``PROTOCOL.md``
beside this module describes the protocol for writing another worker.
"""

import contextlib
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from pipeline.base.errors import TemperError
from pipeline.dag.artifact import Artifact
from pipeline.dag.canonical import resolve_reference
from pipeline.dag.inputs import forget_sources, source_identity
from pipeline.observed import native
from pipeline.store.layout import Store
from pipeline.store.network_timeouts import despite_outages
from pipeline.store.objects import make_folder
from pipeline.store.scratch_snapshots import Staging
from pipeline.store.wholes import whole_inputs
from pipeline.wire.launcher import FOLDER, PREEMPTED, REFUSED
from pipeline.wire.lifeline import exit_with_driver
from pipeline.wire.presence import beating, begin, join
from pipeline.wire.spec import InputSpec, Report, StepSpec
from pipeline.worker.calling import Code, WorkerOutput, call, join_step, packages_in_use
from pipeline.worker.content import (
    DamagedInput,
    check_input,
    describe_files,
    fetch_input,
    require_unchanged,
    states_of,
)
from pipeline.worker.failure import failure_of
from pipeline.worker.progress import ProgressWriter
from pipeline.worker.resource_usage import of_devices, spent
from pipeline.worker.stopping import Stopping
from pipeline.worker.torchrun import (
    ALONE,
    Node,
    RankResult,
    forget_other_ranks,
    run_ranks,
    this_node,
)

PEERS_SECONDS = 5.0
"""Within this time all nodes of a step receive a request to stop."""


def main(spec_url: str, stopping: Stopping | None = None) -> int:
    """Run the attempt that a spec describes; return the exit status.

    The status is 0 if the attempt can be committed, 1 after an error, 75 after a request to stop,
    and 76 if another process owns the attempt.
    """
    exit_with_driver()
    forget_other_ranks()
    with contextlib.suppress(OSError):  # this machine may not have the folder
        os.chdir(os.environ.pop(FOLDER, ""))
    fs, path = fsspec.url_to_fs(spec_url)
    spec = StepSpec.from_json(fs.cat_file(path))
    store = Store(spec.store, is_patient=True)
    stopping = stopping or Stopping()
    stopping.grace = spec.grace
    if spec.seconds is not None:
        stopping.ask_after(spec.seconds)
    node = this_node()
    claim = begin if node.index == 0 else join
    if spec.detached and not claim(store, spec.attempt, node.master):
        print("this attempt was begun by another process, or given up", flush=True)
        return REFUSED
    stopping.report = lambda: _report_leaving(store, spec, node)
    if node.index > 0:
        return _help(spec, store, stopping, node)
    with beating(store, spec.attempt) if spec.detached else contextlib.nullcontext():
        try:
            report = run_attempt(spec, store, stopping, node)
        except Exception as error:
            report = _failed(spec, store, stopping, error)
        despite_outages(store, _write_report, store, spec, node, report, tell=_say)
    if report.error is None:
        return 0
    return PREEMPTED if report.preempted else 1


def run_attempt(spec: StepSpec, store: Store, stopping: Stopping, node: Node = ALONE) -> Report:
    """Run the step function on its inputs, and describe the files that it wrote."""
    progress, began = ProgressWriter(store, spec), time.monotonic()
    with contextlib.ExitStack() as stack:
        with progress.watching() if _is_one_process(spec) else contextlib.nullcontext():
            ran = _run(spec, store, stopping, node, progress, stack)
        discovered = ran.code.discovered()
        metrics = ran.code.with_notice(ran.result.metrics)
        _check_sources(spec)
        files = describe_files(ran.content)
        if not store.is_local:
            place = f"{spec.attempt}/content"
            despite_outages(store, store.objects.upload, ran.content, place, tell=_say)
    result, seconds = ran.result, time.monotonic() - began
    took = spent(result.devices, spec.nodes * spec.processes, ran.resumed, seconds)
    return Report(
        files=files,
        metrics=metrics,
        provenance={**_provenance(result.packages), "spent": took},
        discovered=discovered,
        staged=ran.staging is not None and ran.staging.is_used,
    )


def _help(spec: StepSpec, store: Store, stopping: Stopping, node: Node) -> int:
    """Run the ranks of a node other than the first. It writes a report only if it fails."""
    try:
        with contextlib.ExitStack() as stack:
            _run(spec, store, stopping, node, ProgressWriter(store, spec), stack)
    except Exception as error:
        report = _failed(spec, store, stopping, error)
        if report.preempted:
            stopping.report()
            return PREEMPTED
        despite_outages(store, _write_report, store, spec, node, report, tell=_say)
        return 1
    return 0


def _failed(spec: StepSpec, store: Store, stopping: Stopping, error: Exception) -> Report:
    """Make the report of an exception, and print the traceback unless the step ended on request.

    If it has several nodes, others may have received a request to stop first and stopped, which
    made this node fail.
    """
    was_asked = stopping.is_asked_within(PEERS_SECONDS if spec.nodes > 1 else 0.0)
    failure = failure_of(error, spec.function.partition(":")[0])
    if store.is_local and spec.nodes == 1:  # a full disk has no room for log and report
        shutil.rmtree(Path(spec.attempt, "content"), ignore_errors=True)
    failure.show(was_asked)
    return Report(
        failure.message,
        error.position if isinstance(error, DamagedInput) else None,
        was_asked,
        paused=not failure.excerpt and stopping.is_pause(error),
        excerpt=failure.excerpt,
        provenance=_provenance(packages_in_use()),
    )


def _report_leaving(store: Store, spec: StepSpec, node: Node) -> None:
    """Report that the process was asked to stop: any step can end with the same status."""
    report = Report("the worker was told to leave", preempted=True)
    with contextlib.suppress(OSError):
        _write_report(store, spec, node, report)


def _write_report(store: Store, spec: StepSpec, node: Node, report: Report) -> None:
    name = f"report-{node.index}.json" if node.index else "report.json"
    store.objects.replace(f"{spec.attempt}/{name}", report.to_json())


def _say(sentence: str) -> None:
    print(sentence, flush=True)


@dataclass(frozen=True)
class _Ran:
    """A step that has run on this node, and whether it resumed from scratch."""

    code: Code
    content: Path
    result: RankResult
    staging: Staging | None
    resumed: bool


def _is_one_process(spec: StepSpec) -> bool:
    return spec.nodes * spec.processes == 1


def _run(
    spec: StepSpec,
    store: Store,
    stopping: Stopping,
    node: Node,
    progress: ProgressWriter,
    stack: contextlib.ExitStack,
) -> _Ran:
    """Call the step function in this process, or in the ranks of this node. Its output folder
    and the observation of its code last as long as ``stack``."""
    code = stack.enter_context(Code(spec))
    content = stack.enter_context(_content_folder(store, spec))
    inputs = [
        stack.enter_context(_local_input(store, position, entry))
        for position, entry in enumerate(spec.inputs)
    ]
    room = Path(spec.attempt) if store.is_local else None
    inputs = stack.enter_context(whole_inputs(inputs, room))
    scratch, staging = store.scratch_path(spec.step, spec.key, spec.epoch), None
    with contextlib.ExitStack() as keeping:
        if not store.is_local:
            remote = store.staged_scratch(spec.step, spec.key)
            staging = Staging(store.objects, scratch, remote, spec.epoch, node.index, spec.nodes)
            despite_outages(store, staging.restore, tell=_say)
            keeping.enter_context(staging.running())
            stopping.leave = staging.keep_at_last
        make_folder(scratch)
        resumed = code.go_on_from(scratch)
        if _is_one_process(spec):
            output = WorkerOutput(store, progress, content, scratch, stopping, spec.pause)
            metrics = call(code.function, spec, output, inputs)
            result = RankResult(metrics, packages_in_use(), of_devices())
        else:
            result = run_ranks(spec, node, content, scratch, inputs, stopping)
    stopping.heeded = True  # the remaining work fits into the grace period
    return _Ran(code, content, result, staging, resumed)


@contextlib.contextmanager
def _content_folder(store: Store, spec: StepSpec) -> Iterator[Path]:
    if store.is_local:
        folder = Path(spec.attempt) / "content"
        if spec.nodes == 1 and folder.exists():
            shutil.rmtree(folder)  # left by a warm worker that started again as a fresh interpreter
        folder.mkdir(parents=True, exist_ok=spec.nodes > 1)
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="temper-output-") as folder:
            yield Path(folder)


@contextlib.contextmanager
def _local_input(store: Store, position: int, entry: InputSpec) -> Iterator[Artifact]:
    def artifact(path: str) -> Artifact:
        check_input(position, entry, Path(path))
        kind: type[Artifact] = resolve_reference(entry.kind)
        return kind(Path(path), entry.step, entry.digest)

    if store.is_local:
        before = states_of(entry)
        yield artifact(entry.content)
        require_unchanged(entry, before)
    else:
        with tempfile.TemporaryDirectory(prefix="temper-input-") as folder:
            despite_outages(store, fetch_input, store, position, entry, Path(folder), tell=_say)
            yield artifact(folder)


def _check_sources(spec: StepSpec) -> None:
    """Refuse a result if a source file has changed since its identity went into the key."""
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
    native.be_preloaded()
    listening = Stopping()
    listening.listen()
    status = main(sys.argv[1], listening)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # do not wait for threads that the step left behind
elif __name__ == "__mp_main__":  # a process that a step has spawned
    join_step()
