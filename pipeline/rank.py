"""One rank of a step on several devices: ``python -m pipeline.rank CALL``, under ``torchrun``."""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from pipeline.launchers.protocol import PREEMPTED
from pipeline.ranks import RankCall
from pipeline.spec import StepSpec
from pipeline.step import Metrics
from pipeline.stopping import Stopping
from pipeline.store import Store

ALIVE_SECONDS = 0.5


def main(path: str) -> int:
    """Call the step function; 0 if that went well."""
    stopping = Stopping()
    stopping.listen()
    compile_project_code()
    told = RankCall(**json.loads(Path(path).read_text()))
    _end_with(told.worker)
    spec = StepSpec.from_json(told.spec.encode())
    stopping.grace = spec.grace
    rank, answers = int(os.environ["RANK"]), Path(told.answers)
    stopping.leave = (answers / f"left-{rank}").touch
    try:
        metrics = _call(told, spec, stopping, is_first=rank == 0)
    except Exception as error:
        traceback.print_exc()
        said = {"rank": rank, "time": time.time(), "error": one_line(error)}
        _write(answers / f"error-{rank}.json", said)
        return PREEMPTED if stopping.is_asked else 1
    if rank == 0:
        _write(answers / "result.json", {"metrics": metrics, "packages": packages_in_use()})
    (answers / f"done-{rank}").touch()
    return 0


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all: a rank may be killed at any moment."""
    (temporary := path.with_suffix(".new")).write_text(json.dumps(value))
    os.replace(temporary, path)


def _call(told: RankCall, spec: StepSpec, stopping: Stopping, is_first: bool) -> Metrics:
    code = Code(spec)
    kind = WorkerOutput if is_first else _OtherRank
    output = kind(Store(spec.store), spec, Path(told.content), Path(told.scratch), stopping)
    inputs: list[Artifact] = [
        resolve_reference(entry["kind"])(Path(entry["path"]), entry["step"], entry["digest"])
        for entry in told.inputs
    ]
    metrics = call(code, spec, output, inputs)
    code.check_again()
    return metrics


class _OtherRank(WorkerOutput):
    """The ``out`` of ranks other than 0: they tell nobody how far they are."""

    def progress(self, done: float, total: float | None, metrics: Metrics | None = None) -> None:
        pass


def _end_with(worker: int) -> None:
    """End this process with its worker, or with ``torchrun``, which starts ranks in sessions of
    their own, where a kill of the worker's group does not reach them."""
    torchrun = os.getppid()

    def watch() -> None:
        with contextlib.suppress(ProcessLookupError):
            while os.getppid() == torchrun:
                os.kill(worker, 0)
                time.sleep(ALIVE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parents", daemon=True).start()


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
