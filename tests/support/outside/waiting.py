"""Waiting for other processes, and making them wait, so that no test depends on how fast anything
is. The time limits here end what hangs; nothing else comes near them."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NoReturn, TypeVar

T = TypeVar("T")

HANGS_SECONDS = 300.0


def wait_until(
    condition: Callable[[], T],
    what: str = "",
    seconds: float = HANGS_SECONDS,
    every: float | None = None,
) -> T:
    """What the condition says soon after that is true. To look may cost much, as where it looks at
    all processes; so the longer this waits, the more rarely it looks. A test that is to strike
    before something is over asks for a look ``every`` so many seconds."""
    begun = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - begun
        assert waited < seconds, f"in vain: {what}"
        time.sleep(every or min(0.01 + waited / 20, 0.25))
    return found


# --- steps that count, and wait where a test wants to meet them ----------------------------------


@contextlib.contextmanager
def held(journal: Path | str, at: int) -> Iterator[None]:
    """Lets no counting step with this journal go beyond a number while the block runs."""
    hold(journal, at)
    try:
        yield
    finally:
        let_go(journal)


def hold(journal: Path | str, at: int) -> None:
    """Lets no counting step with this journal go beyond a number, until `let_go`."""
    _held_at(journal).write_text(f"{at}")


def let_go(journal: Path | str) -> None:
    _held_at(journal).unlink(missing_ok=True)


def wait_while_held(
    journal: Path | str, count: int, leaving: Callable[[], bool] = lambda: False
) -> None:
    """What a counting step calls with every number."""

    def may_go_on() -> bool:
        try:
            return leaving() or count < int(_held_at(journal).read_text() or 0)
        except FileNotFoundError:
            return True

    # for longer than the test waits, which is to see it here if nobody ends it
    wait_until(may_go_on, f"the test lets the step go on from {count}", 2 * HANGS_SECONDS)


def _held_at(journal: Path | str) -> Path:
    return Path(f"{journal}.held")


# --- processes -----------------------------------------------------------------------------------


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    return _state(pid) not in "ZX"


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached it."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    """The letter by which the kernel describes what a process does."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def leaving_at(call: int | None) -> Callable[[], bool]:
    """What a run asks whether it must stop: at this call it must, counted from 1."""
    asked = count(1)
    return lambda: next(asked) == call


def kill_this_process(once_there: Path | None = None) -> NoReturn:
    """Ends this process as a power cut does; not before a file is there that is written beside."""
    if once_there is not None:
        wait_until(once_there.exists, f"{once_there} is written")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives SIGKILL")
