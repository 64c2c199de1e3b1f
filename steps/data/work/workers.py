"""Run a job on many files in several processes, and resume a killed job.

A *job* is a frozen dataclass that every process opens once (a tokenizer is loaded then) and that
turns one *shard*, a file, into a folder of files and a summary. A shard is finished when its
record is in the *shard ledger*, a folder that outlives the process:

    LEDGER/NAME/        the files made of a shard
    LEDGER/NAME.json    written last: the summary, and digests of the shard, of its files and of
                        this record

The output of a shard depends only on the shard and the job, so the result does not depend on the
number of processes or on kills. Processes are spawned, never forked (after a fork, locks of the
parent's threads would stay locked), and end when their parent ends.
"""

import gc
import hashlib
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_ALLOCATIONS = 50_000

Summary = Mapping[str, Any]
"""A job's summary of a shard: JSON values."""


class Job(Protocol):
    """The work on every shard. Implement it as a frozen dataclass at the top level of a module, as
    it is pickled to the processes."""

    @property
    def identity(self) -> str:
        """A text that identifies everything, besides the shard, that affects the output."""
        ...

    def open(self) -> "ProcessShard":
        """Prepare the work; called once in each process."""
        ...


@dataclass(frozen=True)
class Shard:
    """One file to work on; `name` is its place in the ledger and may hold slashes."""

    name: str
    source: Path


ProcessShard = Callable[[Shard, Path], Summary]
"""Turns a shard into files in an empty folder."""


@dataclass(frozen=True)
class Finished:
    """The output of a shard. Its summary is read when it is needed: those of many shards together
    would fill memory."""

    shard: Shard
    folder: Path

    @property
    def summary(self) -> Summary:
        return _read(_record(self.folder))["summary"]


class ShardFailed(RuntimeError):
    """The work on a shard raised an error, or its process died."""


OnShards = Callable[[int, int], None]  # finished, all


def process_shards(
    job: Job,
    shards: Sequence[Shard],
    ledger: Path,
    workers: int = 1,
    on_progress: OnShards = lambda done, total: None,
) -> list[Finished]:
    """Process every shard that is not finished in `ledger`; return all results, in order.

    Args:
        workers: the number of processes; 1: only this process; 0: one for each core.

    Raises:
        ShardFailed: the work on a shard, which the message names, failed.
    """
    left = [shard for shard in shards if _finished(job, shard, ledger) is None]
    on_progress(len(shards) - len(left), len(shards))
    processes = min(workers or os.cpu_count() or 1, len(left))
    work = _in_processes if processes > 1 else _in_this_process
    for count, _ in enumerate(work(job, left, ledger, processes), start=1):
        on_progress(len(shards) - len(left) + count, len(shards))
    results = [_finished(job, shard, ledger) for shard in shards]
    if lost := [s.name for s, result in zip(shards, results, strict=True) if result is None]:
        raise ShardFailed(f"{ledger}: {lost[0]} changed while it was worked on; run again")
    return [result for result in results if result is not None]


def place(made: Path, target: Path) -> None:
    """Put a finished file into the result's folder; it stays in the ledger as well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(made, target)
    except OSError:  # a different file system, or one without hard links
        shutil.copyfile(made, target)


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Inside the block, look for cycles of objects after 50,000 new ones, not after 700.

    Rows are thousands of dicts and tuples in no cycle, so a search through them finds nothing, and
    takes about a tenth of the time of loading. Cycles are still freed, so memory stays bounded.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _ALLOCATIONS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _in_this_process(job: Job, shards: Sequence[Shard], ledger: Path, _: int) -> Iterator[None]:
    process = job.open() if shards else None
    for shard in shards:
        assert process is not None
        _process(process, job, shard, ledger)
        yield


def _in_processes(
    job: Job, shards: Sequence[Shard], ledger: Path, processes: int
) -> Iterator[None]:
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_open_job,
        initargs=(job, ledger),
    )
    running: list[Future[None]] = []
    try:
        running = [pool.submit(_process_opened, shard) for shard in shards]
        for future in as_completed(running):
            yield future.result()
    except BrokenProcessPool:
        raise ShardFailed(
            "a worker process was killed (often: out of memory); with fewer workers less memory "
            "is needed, and finished shards are kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


# --- in a process of its own ---------------------------------------------------------------------

_opened: list[tuple[ProcessShard, Job, Path]] = []


def _open_job(job: Job, ledger: Path) -> None:
    threading.Thread(target=exit_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _opened.append((job.open(), job, ledger))


def exit_with_parent() -> None:
    """Wait for the end of the parent process, and end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # immediately, as an unfinished shard is discarded anyway


def _process_opened(shard: Shard) -> None:
    process, job, ledger = _opened[0]
    _process(process, job, shard, ledger)


# --- the shard ledger ----------------------------------------------------------------------------


def _process(process: ProcessShard, job: Job, shard: Shard, ledger: Path) -> None:
    folder, record = _places(shard, ledger)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    identity = _identity(job, shard)
    try:
        summary = process(shard, folder)
    except Exception as error:
        raise ShardFailed(f"{shard.name}: {error}") from error
    files = {file.name: _file_sha256(file) for file in sorted(folder.iterdir())}
    unfinished = record.with_suffix(".part")
    text = json.dumps({"identity": identity, "files": files, "summary": summary})
    unfinished.write_text(f"{_sha256(text)}\n{text}")
    unfinished.replace(record)


def _finished(job: Job, shard: Shard, ledger: Path) -> Finished | None:
    """The finished output of a shard in the ledger; None if it is incomplete or of other data."""
    folder, path = _places(shard, ledger)
    try:
        record = _read(path)
        files = {file.name: _file_sha256(file) for file in sorted(folder.iterdir())}
    except (OSError, ValueError):
        return None
    if record["identity"] != _identity(job, shard) or record["files"] != files:
        return None
    return Finished(shard, folder)


def _places(shard: Shard, ledger: Path) -> tuple[Path, Path]:
    folder = ledger / shard.name
    return folder, _record(folder)


def _record(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _read(record: Path) -> dict[str, Any]:
    """Raise `ValueError` if its first line is not the digest of the second."""
    digest, _, text = record.read_text().partition("\n")
    if digest != _sha256(text):
        raise ValueError(f"{record} is damaged; run again")
    return json.loads(text)


def _identity(job: Job, shard: Shard) -> str:
    return _sha256(f"{job.identity}\n{_file_sha256(shard.source)}")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
