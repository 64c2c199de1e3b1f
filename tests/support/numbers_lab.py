"""A small DAG over a file of numbers, and drivers of it: what a user would have at hand."""

import os
from pathlib import Path

import drivers
from rich.console import Console
from toy_steps import Times, journal_lines, multiply, numbers
from waiting import hold, let_go, wait_until

from pipeline import File, Step, Store, look_again, run
from pipeline.plan.planning import State, make_plan


class Lab:
    """A numbers file, and a journal into which steps write a line when they really run."""

    def __init__(self, folder: Path, store: Store, console: Console):
        self.store, self.console = store, console
        self.source = folder / "numbers.txt"
        self.source.write_text("1 2 3 4")
        self.journal = str(folder / "journal.txt")

    def numbers(self) -> Step:
        look_again()  # files and code are read once per process; a user's next run is a new one
        return self.numbers_again()

    def numbers_again(self) -> Step:
        return numbers(File(str(self.source)), self.journal)

    def product(self, config: Times = Times(), part: str = "train") -> Step:  # noqa: B008
        return multiply(self.numbers()[part], config, self.journal)

    def run(self, **roots: Step) -> list[str]:
        """Run and say which steps ran, in order."""
        before = len(journal_lines(self.journal))
        run(roots, self.store, console=self.console)
        return journal_lines(self.journal)[before:]

    def printed(self) -> str:
        """Everything printed so far, as one line."""
        return " ".join(self.console.file.getvalue().split())  # type: ignore[attr-defined]

    def states(self, **roots: Step) -> dict[str, State]:
        plan = make_plan(roots, self.store)
        return {planned.step.name: planned.state for planned in plan.steps}

    def reasons(self, **roots: Step) -> dict[str, str]:
        return {p.step.name: p.reason for p in make_plan(roots, self.store).steps}


# --- drivers as processes of their own -----------------------------------------------------------

COUNT = """
import sys
from toy_steps import slow_count
from pipeline import run
run({"count": slow_count(6, sys.argv[2])}, sys.argv[1], jobs=int(sys.argv[3]))
"""


def start_driver(lab: Lab, code: str = COUNT, more: str | int = 1) -> drivers.Driver:
    """A driver in a session of its own, by default of a step that counts to 6."""
    return drivers.start_driver(code, lab.store.root, lab.journal, str(more))


def start_held_driver(lab: Lab, at: int = 4, jobs: int = 1) -> drivers.Driver:
    """A driver whose step has counted to a number, and goes no further until `let_go`."""
    hold(lab.journal, at)
    driver = start_driver(lab, COUNT, jobs)
    wait_for(lab, f"count {at}")
    return driver


def end(lab: Lab, driver: drivers.Driver, number: int) -> None:
    """Signals a driver that is held, as its terminal would, and waits for its end and its worker's.

    What counts after it is held no more.
    """
    os.killpg(driver.pid, number)
    driver.wait()
    wait_until(lambda: not workers(lab.store), "the worker ends with its driver")
    let_go(lab.journal)


def wait_for(lab: Lab, line: str) -> None:
    wait_until(lambda: line in journal_lines(lab.journal), f"{line!r} in the journal")


def workers(store: Store) -> list[int]:
    """The processes of this machine that make something of a store."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"pipeline.worker.attempt" in words and store.root.encode() in words[-2]:
            found.append(int(process.name))
    return found
