"""Steps for tests of launchers: they say where they ran, take their time, and heed the request to
leave. Each appends lines to a journal outside the store."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from waiting import let_go, wait_until, wait_while_held

from pipeline import Output, Store, step
from pipeline.store.manifest import Manifest


@step(version="1")
def where(out: Output, journal: str, number: int = 0, seconds: float = 0.0) -> dict:
    """Which devices it was given, and when it had them."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    began = time.time()
    time.sleep(seconds)
    note(journal, json.dumps([number, devices, began, time.time()]))
    (out.path / "number.txt").write_text(str(number))
    threads = os.environ.get("OMP_NUM_THREADS")
    return {"devices": devices, "threads": threads, "folder": os.getcwd()}


@step(version="1")
def count_to(
    out: Output, until: int, journal: str, seconds: float = 0.1, heed: bool = True
) -> dict:
    """Counts, and keeps in scratch where it is: every time if it does not ``heed``, and else only
    when it is told to leave, as training with a long checkpoint interval.

    A test can hold it at a number: see `waiting`.
    """
    state = out.scratch / "count.txt"
    reached = int(state.read_text()) if state.exists() else 0
    note(journal, f"from {reached}")
    for count in range(reached + 1, until + 1):
        time.sleep(seconds)
        if not heed or out.stopping:
            temporary = state.with_suffix(".new")
            temporary.write_text(str(count))
            os.replace(temporary, state)
        if heed and out.stopping:
            note(journal, f"left at {count}")
            raise RuntimeError("leaving, the count is kept")
        note(journal, f"count {count}")
        out.progress(count, until)
        wait_while_held(journal, count, lambda: heed and bool(out.stopping))
    (out.path / "count.txt").write_text(str(until))
    return {"until": until}


@step(version="1")
def call(out: Output, command: str) -> dict:
    """Runs a program."""
    subprocess.run(command.split(), check=True)
    return {}


@step(version="1")
def always_fails(out: Output) -> dict:
    """Fails."""
    raise ValueError("this step always fails")


def send_from_outside(number: int) -> None:
    """Let a process that this one has not started, as far as anybody sees, send it a signal."""
    kill = f"sleep 0.3; kill -{int(number)} {os.getpid()}"
    subprocess.run(["sh", "-c", f"({kill}) &"], check=True, start_new_session=True)


@step(version="1")
def leave_once(out: Output, journal: str, times: int = 1) -> dict:
    """Is told to leave so many times, as by an engine that wants its machine back."""
    for count in range(times):
        if not (mark := out.scratch / f"left-{count}").exists():
            mark.touch()
            note(journal, "left")
            send_from_outside(signal.SIGTERM)
            wait_until(lambda: False, "the step is told to leave")
    note(journal, "done")
    return {}


@step(version="1")
def add_ranks(out: Output, journal: str, values: list) -> dict:
    """The sum of what every rank has, by an all-reduce."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    note(journal, f"rank {rank} of {ranks} node {os.environ.get('TEMPER_NODE')}")
    out.progress(rank, ranks)
    total = torch.tensor(values[rank::ranks], dtype=torch.float64).sum()
    dist.all_reduce(total)
    (out.scratch / f"rank-{rank}").write_text(str(float(total)))
    dist.barrier()
    if rank == 0:
        (out.path / "total.json").write_text(json.dumps(float(total)))
    dist.destroy_process_group()
    return {"total": float(total), "ranks": ranks}


@step(version="1")
def gang(out: Output, journal: str, first: str = "") -> dict:
    """Ranks that begin together; the first time, some may fail or all wait to be told to leave.

    They need no process group for that, and start faster without.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    note(journal, f"rank {rank} pid {os.getpid()}")
    wait_until(lambda: len({line.split()[1] for line in lines(journal)}) >= ranks, "all ranks")
    if first == f"raise {rank}":
        raise ValueError("this rank has no data")
    mark = out.scratch / f"was-here-{rank}"
    if first and not mark.exists():
        mark.touch()
        if first == f"kill {rank}":  # once the others have left their marks
            wait_until(lambda: len(listening(journal)) == ranks - 1, "the other ranks listen")
            os.kill(os.getpid(), signal.SIGKILL)
        _wait_to_be_told(out, journal, rank)
    return {"ranks": ranks}


def _wait_to_be_told(out: Output, journal: str, rank: int) -> None:
    if not out.stopping:  # a step that asks this is given time to leave
        note(journal, f"rank {rank} listens")
    wait_until(lambda: out.stopping, "the step is told to leave")
    note(journal, f"rank {rank} left")
    raise RuntimeError("leaving")


@contextlib.contextmanager
def at_most(seconds: int, explain: Callable[[], str]) -> Iterator[None]:
    """End a test that hangs, with a reason."""

    def over(*_: object) -> None:
        raise TimeoutError(f"after {seconds} s: {explain()}")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def note(journal: str, line: str) -> None:
    with open(journal, "a") as file:
        file.write(line + "\n")


def lines(journal: Path | str) -> list[str]:
    path = Path(journal)
    return path.read_text().splitlines() if path.exists() else []


def counted(journal: str) -> list[str]:
    """What :func:`count_to` has said."""
    return [line for line in lines(journal) if line.startswith("count")]


def listening(journal: str) -> list[str]:
    """The ranks of a :func:`gang` that would notice that they are to leave."""
    return [line for line in lines(journal) if line.endswith("listens")]


@contextlib.contextmanager
def let_go_once_logged(store: Store, journal: str, text: str) -> Iterator[None]:
    """Lets a held step go on as soon as the log of an attempt has a text, which it must get."""

    seen: list[Path] = []

    def is_logged() -> bool:
        logs = Path(store.root).glob("attempts/*/*/*/log.txt")
        seen.extend(log for log in logs if text in log.read_text())
        return bool(seen)

    def wait() -> None:
        try:
            wait_until(is_logged, f"a log has: {text}")
        finally:
            let_go(journal)

    waiting = threading.Thread(target=wait)
    waiting.start()
    yield
    waiting.join()
    assert seen


def log_of(store: Store, made: Manifest) -> str:
    """What the step printed, and what its launcher said of it."""
    return Path(store.attempt_path(made), "log.txt").read_text()
