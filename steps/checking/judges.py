"""Verdicts from separate processes, each verdict with its own time limit.

    completions ──► idle process ──► verdicts    the clock of a verdict starts when a process starts
                      │ too long ──► killed      on it, not when it is queued
                      │ dies     ──► another

If a checker hangs or crashes, the run continues, and the completion is not wrong but has no
verdict, with a reason. This module uses no signal handlers, so it works in any thread. Each process
leads its own session, so that all processes that a checker has started are killed with it. A
process also ends when its parent ends, for whatever reason.
"""

import contextlib
import math
import multiprocessing
import os
import pickle
import resource
import select
import signal
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from numbers import Real
from pathlib import Path
from typing import Any

from steps.checking.compared import Compared, PairJudge
from steps.checking.kept_verdicts import KeptVerdicts, content_of
from steps.checking.verdicts import Answered, Checker, Judgement, Verdict, no_verdict
from steps.shared.checks import require, require_method
from steps.shared.counts import share_of

_SPAWN = multiprocessing.get_context("spawn")
_FAILED_STARTS = 3
_MOST_AT_ONCE = 64
_LONGEST_REASON = 500
_TO_END = 1.0
"""Seconds from the end of a process's pipe to its own."""
_LARGEST = 2**26
"""The most bytes of a message of a process."""
_SIZE = struct.Struct("!i")
"""What `Connection` writes before a message: its size."""


class JudgeError(RuntimeError):
    """The processes of a checker end before they judge anything."""


class Judges:
    """Processes that judge with one checker; a context manager. They start on first use.

    Args:
        processes: how many; 0: one for each core.
        time_limit: seconds for one verdict.
        scratch: where verdicts of a costly checker are kept.
        most_without: a costly checker is asked no further once a larger share of completions is
            sure to have no verdict.

    Raises ValueError for a checker without a method `check`, which would judge nothing.
    """

    def __init__(
        self,
        checker: Checker | PairJudge,
        processes: int = 1,
        time_limit: float = 10.0,
        scratch: Path | None = None,
        most_without: float = 1.0,
    ) -> None:
        require_method(checker, Checker if isinstance(checker, Checker) else PairJudge, "check")
        require(processes >= 0, "processes must be at least 0", processes)
        require(0 < time_limit < math.inf, "time_limit must be above 0", time_limit)
        self._checker = checker
        self._most = processes or os.cpu_count() or 1
        self._time_limit = time_limit
        self._processes: list[_Process] = []
        self._failed_starts = 0
        self._kept = KeptVerdicts(scratch) if checker.is_costly and scratch else None
        self._most_without = most_without

    @property
    def name(self) -> str:
        """The name of the checker, which is also the name of its reward."""
        return self._checker.name

    def judge(
        self,
        completions: Sequence[Answered] | Sequence[Compared],
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Judgement]:
        """Judge completions in parallel. The judgements are in the order of the completions.

        Raises:
            JudgeError: processes end before they are ready.
            ValueError: a costly checker gives too few verdicts.
        """
        kept = self._kept
        if kept is None:
            return self._judge(completions, on_progress, lambda number, judgement: None)
        contents = list(map(content_of, completions))
        different = dict(zip(reversed(contents), reversed(completions), strict=True))
        missing = [content for content in different if kept.get(content) is None]
        without: list[str] = []

        def keep(number: int, judgement: Judgement) -> None:
            kept.put(missing[number], judgement)
            if judgement.verdict is Verdict.none:
                without.append(judgement.reason)
                self._require_verdicts(without, len(completions))

        found = self._judge([different[content] for content in missing], on_progress, keep)
        new = dict(zip(missing, found, strict=True))
        return [kept.get(content) or new[content] for content in contents]

    def _require_verdicts(self, without: Sequence[str], total: int) -> None:
        if len(without) > share_of(self._most_without, total):
            raise ValueError(
                f"{len(without)} of {total} judgements have no verdict, the last because: "
                f"{without[-1]}; mend the checker and run again, which asks for what is missing; "
                "or raise most_without, which asks for all verdicts again"
            )

    def _judge(
        self,
        completions: Sequence[Answered | Compared],
        on_progress: Callable[[int, int], None],
        on_verdict: Callable[[int, Judgement], None],
    ) -> list[Judgement]:
        queue = deque(range(len(completions)))
        found: dict[int, Judgement] = {}
        while len(found) < len(completions):
            while len(self._processes) < min(self._most, len(completions) - len(found)):
                self._processes.append(_Process(self._checker, self._time_limit))
            most = 1 if self._kept else _MOST_AT_ONCE  # none is paid for that nobody takes
            share = max(1, min(most, len(queue) // len(self._processes)))
            for process in self._processes:
                if process.is_idle and queue:
                    numbers = [queue.popleft() for _ in range(min(share, len(queue)))]
                    process.start(numbers, [completions[number] for number in numbers])
            patience = max(0.0, min(p.seconds_left for p in self._processes))
            signs = [sign for process in self._processes for sign in process.signs]
            seen = wait(signs, min(patience, 3600))
            for process in list(self._processes):
                if any(sign in seen for sign in process.signs) or process.seconds_left <= 0:
                    new = self._answers(process, queue)
                    found |= new
                    for number, judgement in new.items():
                        on_verdict(number, judgement)
                    on_progress(len(found), len(completions))
        return [found[number] for number in range(len(completions))]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        self._processes = []

    def _answers(self, process: "_Process", queue: deque[int]) -> dict[int, Judgement]:
        """The judgements of a process, by the completion's index. Completions that a dead process
        had not begun go back into the queue."""
        was_ready = process.is_ready
        found = process.receive()
        if process.is_dead:
            process.kill()
            self._processes.remove(process)
            queue.extendleft(reversed(process.handed))
            self._failed_starts += not was_ready
            if self._failed_starts >= _FAILED_STARTS:
                raise JudgeError(
                    f"processes for the checker {self._checker.name!r} end before they judge "
                    f"({process.ended}); what they wrote to stderr says why"
                )
        else:
            self._failed_starts = 0
        return found

    def __enter__(self) -> "Judges":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Process:
    """One process: it reports that it is ready, and then judges a few completions, one by one.

    handed: the indices of the completions that it has not judged yet. It works on the first one.
    """

    def __init__(self, checker: Checker | PairJudge, time_limit: float) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, checker, time_limit))
        self._process.start()
        theirs.close()
        os.set_blocking(self.connection.fileno(), False)
        self.signs = (self.connection, self._process.sentinel)
        self._received = bytearray()
        self._time_limit = time_limit
        self._deadline = math.inf
        self.handed: deque[int] = deque()
        self.is_ready = self.is_dead = False

    @property
    def is_idle(self) -> bool:
        return self.is_ready and not self.handed

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def ended(self) -> str:
        code = self._process.exitcode
        if code is None:
            return "it closed its pipe"
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    def start(self, numbers: Sequence[int], completions: Sequence[Answered | Compared]) -> None:
        """Send completions to the process, and start the clock for the first one."""
        self.handed.extend(numbers)
        self._deadline = time.monotonic() + self._time_limit
        message = pickle.dumps(completions)
        rest = memoryview(_SIZE.pack(len(message)) + message)
        room = select.poll()
        room.register(self.connection, select.POLLOUT)
        with contextlib.suppress(ConnectionError):  # the process has died; `receive` finds out
            while rest and self.seconds_left > 0:
                if room.poll(1000 * self.seconds_left):
                    rest = rest[os.write(self.connection.fileno(), rest) :]

    def receive(self) -> dict[int, Judgement]:
        """The new judgements of the process, by index. Call it when the process has sent something,
        has died or has run out of time. Each judgement starts the clock for the next one.

        It never waits for the rest of a message: a checker may write into the pipe, and what it has
        started may hold the pipe open after its end.
        """
        found: dict[int, Judgement] = {}
        is_alive = self._process.is_alive()
        has_ended = self._read() or not is_alive  # what it sent before its end counts
        try:
            for message in self._messages():
                if self.is_ready:
                    if not isinstance(message, Judgement):
                        raise ValueError(f"{message!r} is no judgement")
                    found[self.handed.popleft()] = message
                self.is_ready = True
                self._deadline = time.monotonic() + self._time_limit if self.handed else math.inf
        except Exception:  # bytes that are no message can raise anything
            return found | self._died("the checker wrote into the pipe for its verdicts")
        if has_ended:
            self._process.join(_TO_END)
            return found | self._died(f"the checker's process ended ({self.ended})")
        if self.seconds_left <= 0:
            return found | self._died(f"no verdict within {self._time_limit:g} s")
        return found

    def _read(self) -> bool:
        """Take the bytes that are there; whether there will be no more."""
        with contextlib.suppress(BlockingIOError):
            while len(self._received) <= _LARGEST:
                try:
                    more = os.read(self.connection.fileno(), 2**16)
                except ConnectionError:
                    return True
                if not more:
                    return True
                self._received += more
        return False

    def _messages(self) -> Iterator[Any]:
        """The messages that are there as a whole."""
        while len(self._received) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._received)
            if not 0 <= size <= _LARGEST:
                raise ValueError(f"a message of {size} bytes")
            if len(self._received) < (end := _SIZE.size + size):
                return
            message = bytes(self._received[_SIZE.size : end])
            del self._received[:end]
            yield pickle.loads(message)

    def _died(self, reason: str) -> dict[int, Judgement]:
        self.is_dead = True
        return {self.handed.popleft(): no_verdict(reason)} if self.handed else {}

    def kill(self) -> None:
        """Kill the process and all processes that it has started."""
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self.connection.close()


# --- in the judging process -----------------------------------------------------------------------


def _serve(connection: Connection, checker: Any, time_limit: float) -> None:
    os.setsid()
    _die_first()
    own = os.getpid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection.send(None)
    while True:
        try:
            completions = connection.recv()
        except EOFError:
            return
        for answered in completions:
            _limit_processor_time(time_limit)
            judgement = _judged(checker, answered)
            if os.getpid() != own:  # a copy that the checker forked and did not end
                os._exit(1)
            connection.send_bytes(pickle.dumps(judgement))  # `send` takes half as long again


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)


def _die_first() -> None:
    """Where memory runs out, Linux is to kill this process, and not the one that trains."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_processor_time(time_limit: float) -> None:
    """Limit the processor time, in case the parent has died and a checker (such as a regular
    expression) blocks all threads, including the one that ends this process with its parent."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = math.ceil(usage.ru_utime + usage.ru_stime + 2 * time_limit) + 10
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _judged(checker: Any, answered: Answered | Compared) -> Judgement:
    try:
        judgement = checker.check(answered)
        if not isinstance(judgement, Judgement):
            return no_verdict(f"the checker returned {judgement!r}, no judgement"[:_LONGEST_REASON])
        reward = judgement.reward
        if reward is None and judgement.verdict is Verdict.none:
            return judgement
        if not (isinstance(reward, Real) and math.isfinite(reward)):
            return no_verdict(f"the checker gave the reward {reward!r}, which is no number")
    except Exception as error:  # of the reward, too, which may be computed or too large for a float
        return no_verdict(f"{type(error).__name__}: {error}"[:_LONGEST_REASON])
    return judgement
