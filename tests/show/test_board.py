"""The live view, rendered as a terminal would show it."""

import io
import json
import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from toy_steps import slow_count

from pipeline import Store
from pipeline.estimate.remaining import Ahead
from pipeline.plan.planning import make_plan
from pipeline.plan.resolver import Resolver
from pipeline.show.live import Board
from pipeline.store.catalog import Catalog
from pipeline.store.lease import Leases

pytestmark = pytest.mark.usefixtures("workers_here")


def test_a_running_step_shows_its_bar_its_pace_what_is_left_and_its_last_metrics(
    store: Store, tmp_path: Path
) -> None:
    store.prepare()
    step = slow_count(100, str(tmp_path / "journal"))
    plan, resolver = make_plan({"count": step}, store), Resolver(Catalog(store))
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    board = Board(console, plan, resolver, place=lambda step: "slurm, gpus=8")
    board.observe(step.fingerprint, "running", "")
    (row,) = board.rows.values()
    row.pace.note(10, now=time.monotonic() - 20)
    progress = {"done": 50, "total": 100, "metrics": {"loss": 0.25}}
    path = store.progress_path(step.name, row.key)
    store.objects.replace(path, json.dumps(progress).encode())
    console.print(board.renderable())
    shown = printed(console)
    assert "slurm, gpus=8" in shown
    assert re.search(r"━+ +2\d\.\ds left  loss 0\.25  50/100  (2|1\.\d+)/s", shown), shown


def board_of(
    store: Store, tmp_path: Path, width: int = 80, ahead: Sequence[Ahead] = (), run: str = ""
) -> Board:
    """The board of one step of a hundred counts, which runs."""
    store.prepare()
    step = slow_count(100, str(tmp_path / "journal"))
    plan, resolver = make_plan({"count": step}, store), Resolver(Catalog(store))
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    known = [replace(one, name=step.fingerprint) for one in ahead]
    board = Board(console, plan, resolver, ahead=known, run=run)
    board.observe(step.fingerprint, "running", "")
    return board


def tell(board: Board, **progress: object) -> None:
    """Write a step's progress, and let the board look."""
    (row,) = board.rows.values()
    row.looked = 0.0
    store = board.resolver.store
    told = {"done": 0, "total": None, "metrics": {}, **progress}
    store.objects.replace(
        store.progress_path(row.step.name, board.resolver.key_and_recipe(row.step)[0]),  # type: ignore[index]
        json.dumps(told).encode(),
    )


def drawn(board: Board) -> str:
    before = len(printed(board.console))
    board.console.print(board.renderable())
    return printed(board.console)[before:]


def test_the_last_line_says_how_long_all_steps_still_take(store: Store, tmp_path: Path) -> None:
    known = board_of(store, tmp_path, ahead=[Ahead("", 600.0)])
    assert re.search(r"0 of 1 steps; \d+\.\ds; about 10 min left", drawn(known))
    unknown = board_of(store, tmp_path, ahead=[Ahead("", None)])
    assert re.fullmatch(r"0 of 1 steps; \d+\.\ds", drawn(unknown).splitlines()[-1].strip())


def test_a_run_that_is_stopped_shows_how_far_its_steps_came(store: Store, tmp_path: Path) -> None:
    board = board_of(store, tmp_path)
    tell(board, done=4, total=6, doing="in save")
    (row,) = board.rows.values()
    scratch = store.scratch_path(row.step.name, board.resolver.key_and_recipe(row.step)[0])  # type: ignore[index]
    scratch.mkdir(parents=True)
    (scratch / "checkpoint").write_text("x")
    with pytest.raises(KeyboardInterrupt), board.live():
        raise KeyboardInterrupt
    assert (row.state, row.message) == ("stopped", "at 4/6, saved")
    assert "left" not in drawn(board)


def test_without_a_terminal_a_step_that_runs_says_from_time_to_time_how_far_it_is(
    store: Store, tmp_path: Path
) -> None:
    board = board_of(store, tmp_path)
    board.console = Console(file=io.StringIO(), width=80)
    tell(board, done=4, total=6, metrics={"loss": 0.5})
    (row,) = board.rows.values()

    def lines() -> list[str]:
        board._print_what_is_new()
        return board.console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    assert [line.partition("] ")[2] for line in lines()] == ["slow_count: running (local)"]
    row.started = time.monotonic() - 60
    (_, line) = lines()
    assert re.search(r"slow_count: .*loss 0\.5 .*4/6", line)
    assert len(lines()) == 2  # and not again at once


def test_a_step_that_another_driver_makes_says_so(store: Store, tmp_path: Path) -> None:
    board = board_of(store, tmp_path, run="mine")
    (row,) = board.rows.values()
    key = board.resolver.key_and_recipe(row.step)[0]  # type: ignore[index]
    other = Leases(store.objects, store.root, "theirs").acquire(row.step.name, key, lambda: False)
    assert other is not None
    assert f"made by another run ({platform.node()}, pid {os.getpid()})" in drawn(board)
    assert "waiting" in drawn(board)
    board.console = Console(file=io.StringIO(), width=80)
    board._print_what_is_new()
    other.release()
    own = Leases(store.objects, store.root, "mine").acquire(row.step.name, key, lambda: False)
    assert own is not None
    row.asked = 0.0
    board._print_what_is_new()
    told = board.console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.partition(": ")[2][:13] for line in told] == ["waits for ano", "running (loca"]
    own.release()


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]
