"""Read and parse files in other processes, ahead of the one that decides and writes.

Each process reads one file in order and keeps a bounded number of records ready. So the records and
their order are those of a single process. Processes are spawned, never forked, and end with their
parent.
"""

import multiprocessing
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection

from steps.data.load.parsing import Parsed, Parser
from steps.data.load.shards import FileShard, Shard, Source
from steps.data.work.workers import exit_with_parent, rarely_collecting

_RECORDS_A_BATCH = 128
_BATCHES_READY = 16

Batch = list[tuple[int, Parsed]] | Exception


class ReadingStopped(RuntimeError):
    """A process that reads a file was killed."""


class ReadAhead:
    """The files of one source, of which up to `processes` are read at a time.

    Use :meth:`open` in place of `Parser.rows`, and close it.
    """

    def __init__(self, source: Source, parser: Parser, processes: int) -> None:
        self.source, self.parser, self.processes = source, parser, processes
        self._running: dict[int, _Reading] = {}

    def open(self, index: int, start: int) -> Iterator[tuple[int, Parsed]]:
        """The records of file `index` from row `start` on.

        Raises:
            OSError: the file cannot be read.
            ReadingStopped: the process was killed.
        """
        for ahead in range(index, min(index + self.processes, len(self.source.shards))):
            if ahead not in self._running:
                shard, first = self.source.shards[ahead], start if ahead == index else 1
                self._running[ahead] = _Reading(self.parser, shard, first)
        reading = self._running[index]
        try:
            yield from reading.records()
        finally:
            reading.close()

    def close(self) -> None:
        for reading in self._running.values():
            reading.close()


class _Reading:
    """A process that reads a file."""

    def __init__(self, parser: Parser, shard: Shard, start: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = shard.url if isinstance(shard, FileShard) else shard.name
        self.receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_read, args=(parser, shard, start, sender), daemon=True
        )
        self.process.start()
        sender.close()  # so that the pipe ends when the process does

    def records(self) -> Iterator[tuple[int, Parsed]]:
        while True:
            try:
                batch = self.receiver.recv()
            except EOFError:
                raise ReadingStopped(
                    f"the process that reads {self.name} was killed (often: out of memory); "
                    "run again, with data.workers=1 for less memory"
                ) from None
            if isinstance(batch, Exception):
                raise batch
            if not batch:
                return
            yield from batch

    def close(self) -> None:
        self.process.terminate()
        self.process.join()
        self.receiver.close()


# --- in a process of its own ---------------------------------------------------------------------


def _read(parser: Parser, shard: Shard, start: int, sender: Connection) -> None:
    """Send the records of a file in batches: at the end an empty one, after an error the error."""
    threading.Thread(target=exit_with_parent, daemon=True).start()
    ready: queue.Queue[Batch] = queue.Queue(_BATCHES_READY)
    threading.Thread(target=_fill, args=(parser, shard, start, ready), daemon=True).start()
    with suppress(BrokenPipeError):  # the parent needs no more
        while batch := ready.get():
            sender.send(batch)
            if isinstance(batch, Exception):
                return
        sender.send([])


def _fill(parser: Parser, shard: Shard, start: int, ready: "queue.Queue[Batch]") -> None:
    try:
        records = parser.rows(shard, start)
        with rarely_collecting():
            while batch := list(islice(records, _RECORDS_A_BATCH)):
                ready.put(batch)
        ready.put([])
    except Exception as error:
        ready.put(error)
