"""One rank of a step on several devices: ``python -m pipeline.worker.rank CALL``."""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.base import processes
from pipeline.base.redaction import record
from pipeline.dag.artifact import Artifact
from pipeline.dag.canonical import resolve_reference
from pipeline.dag.step import Metrics
from pipeline.observed.observation import ENVIRONMENT as OBSERVED
from pipeline.store.layout import Store
from pipeline.wire.launcher import PREEMPTED
from pipeline.wire.spec import StepSpec
from pipeline.worker.calling import WorkerOutput, call, join_step, packages_in_use
from pipeline.worker.failure import failure_of
from pipeline.worker.progress import ProgressWriter
from pipeline.worker.resource_usage import of_devices
from pipeline.worker.stopping import Stopping
from pipeline.worker.torchrun import PAUSED, RankCall

ALIVE_SECONDS = 0.5


def main(path: str) -> int:
    """Call the step function, and return the exit status."""
    stopping = Stopping()
    stopping.listen()
    request = RankCall(**json.loads(Path(path).read_text()))
    os.environ[OBSERVED] = request.observed
    join_step()
    _end_with(request.worker)
    spec = StepSpec.from_json(request.spec.encode())
    stopping.grace = spec.grace
    rank, answers = int(os.environ["RANK"]), Path(request.answers)
    stopping.leave = (answers / f"left-{rank}").touch
    try:
        metrics = _call(request, spec, stopping, is_first=rank == 0)
    except Exception as error:
        failure = failure_of(error, spec.function.partition(":")[0])
        failure.show(stopping.is_asked)
        entry = {"rank": rank, "time": time.time(), "error": failure.message}
        _write(answers / f"error-{rank}.json", {**entry, "excerpt": failure.excerpt})
        if not failure.excerpt and stopping.is_pause(error):
            (answers / PAUSED).touch()
        return PREEMPTED if stopping.is_asked else 1
    if rank == 0:
        result = {"metrics": metrics, "packages": packages_in_use(), "devices": of_devices()}
        _write(answers / "result.json", result)
    (answers / f"done-{rank}").touch()
    return 0


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file atomically, since a rank may be killed at any moment."""
    (temporary := path.with_suffix(".new")).write_bytes(record(value))
    os.replace(temporary, path)


def _call(request: RankCall, spec: StepSpec, stopping: Stopping, is_first: bool) -> Metrics:
    store = Store(spec.store, is_patient=True)
    progress = ProgressWriter(store, spec, is_writing=is_first)
    output = WorkerOutput(
        store, progress, Path(request.content), Path(request.scratch), stopping, spec.pause
    )
    inputs: list[Artifact] = [
        resolve_reference(entry["kind"])(Path(entry["path"]), entry["step"], entry["digest"])
        for entry in request.inputs
    ]
    with progress.watching():
        return call(resolve_reference(spec.function), spec, output, inputs)


def _end_with(worker: int) -> None:
    """End this process when its worker or ``torchrun`` ends. ``torchrun`` starts each rank in a
    session of its own, so killing the worker's process group does not reach the ranks."""
    torchrun = os.getppid()

    def watch() -> None:
        while os.getppid() == torchrun and processes.exists(worker):
            time.sleep(ALIVE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parents", daemon=True).start()


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
elif __name__ == "__mp_main__":  # a process that a rank has spawned
    join_step()
