"""The cost of the live view of a sweep for the driver, as a share of one core.

    python benchmarks/live_view.py                   a quarter of a minute
    python benchmarks/live_view.py --steps 1000

The view is drawn as in a run (4 times a second, with progress from the store) for a sweep of many
steps, of which some run and report progress. No step really runs: the script measures only the
process time of the view, after its first drawing.
"""

import io
import json
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline import Output, Store, step
from pipeline.plan.planning import make_plan
from pipeline.plan.resolver import Resolver
from pipeline.show.live import Board
from pipeline.store.catalog import Catalog

METRICS = {"loss": 0.5, "rewards/margins": 0.1, "rewards/accuracies": 0.75}


@step(version="1")
def train(out: Output, beta: float) -> dict:
    return {}


def main(
    steps: Annotated[int, typer.Option(min=1, help="Of the sweep.")] = 200,
    running: Annotated[int, typer.Option(min=0, help="At once.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="To watch.")] = 10.0,
) -> None:
    """Print the share of a core for the terminal's live view, and for plain lines."""
    for kind, terminal in (("terminal", True), ("plain lines", False)):
        share = watch(steps, min(running, steps), seconds, terminal)
        print(f"{steps} steps, {running} running, {kind}: {share:.1%} of one core")


def watch(steps: int, running: int, seconds: float, terminal: bool) -> float:
    """The process time of the view, divided by the time it was watched."""
    with tempfile.TemporaryDirectory() as folder:
        board = make_board(Store(f"{folder}/store"), steps, terminal)
        rows = list(board.rows.values())[:running]
        for row in rows:
            board.observe(row.step.fingerprint, "running", "")
        with board.live():
            time.sleep(1.0)  # what is done once
            used, began = time.process_time(), time.monotonic()
            done = 0
            while time.monotonic() - began < seconds:
                done += 1
                for row in rows:
                    report(board, row.step.name, row.key, done)
                time.sleep(1.0)
            return (time.process_time() - used) / (time.monotonic() - began)


def make_board(store: Store, steps: int, terminal: bool) -> Board:
    store.prepare()
    plan = make_plan({f"beta={i}": train(float(i)) for i in range(steps)}, store)
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=120, height=50, color_system="truecolor"
    )
    return Board(console, plan, Resolver(Catalog(store)))


def report(board: Board, step: str, key: str, done: int) -> None:
    """Write progress as a worker does."""
    progress = {"done": done, "total": 1000, "metrics": METRICS}
    path = Path(board.resolver.store.progress_path(step, key))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(progress))


if __name__ == "__main__":
    typer.run(main)
