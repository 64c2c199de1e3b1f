"""The live view, rendered as a terminal would show it."""

import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from test_pipeline import Lab
from toy_steps import fail, slow_count

from pipeline import Store
from pipeline.board import show_results
from pipeline.catalog import Catalog
from pipeline.live import Board
from pipeline.logs import TAIL_BYTES
from pipeline.plan import Resolver, make_plan


@pytest.mark.parametrize("width", [80, 120])
def test_a_running_step_keeps_its_name_state_and_time_beside_long_progress(
    store: Store, tmp_path: Path, width: int
) -> None:
    store.prepare()
    step = slow_count(3, str(tmp_path / "journal"))
    plan, resolver = make_plan({"count": step}, store), Resolver(Catalog(store))
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    board = Board(console, plan, resolver)
    board.observe(step.fingerprint, "running", "")
    resolved = resolver.key_and_recipe(step)
    assert resolved is not None
    metrics = {
        f"rewards/{name}": 0.123456 for name in ("chosen", "rejected", "margins", "accuracy")
    }
    store.objects.replace(
        store.progress_path(step.name, resolved[0]),
        json.dumps({"done": 3, "total": 8, "metrics": {"loss": 0.5, **metrics}}).encode(),
    )
    console.print(board.renderable())
    (line,) = [line for line in console.file.getvalue().splitlines() if "slow" in line]  # type: ignore[attr-defined]
    assert "slow_count" in line
    assert "running" in line
    assert "0.0s" in line
    assert "3/8" in line
    assert "loss 0.5" in line


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
    assert re.search(r"━+ +50/100  (2|1\.\d+)/s, 2\d\.\ds left  loss 0\.25", shown), shown


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["", "memory://"])
def test_of_a_log_without_end_only_the_end_is_shown(tmp_path: Path, kind: str) -> None:
    lab = Lab(tmp_path, Store(f"{kind}{tmp_path}/logs"), Console(file=io.StringIO(), width=120))
    step = fail(lab.numbers(), lab.journal)
    plan, resolver = make_plan({"broken": step}, lab.store), Resolver(Catalog(lab.store))
    board = Board(lab.console, plan, resolver)
    log = f"{lab.store.root}/log.txt"
    data = b"first\n" + b"=" * (TAIL_BYTES * 8) + b"\nlast line\n"
    lab.store.objects.replace(log, data)
    board.observe(step.fingerprint, "failed", f"{'m' * 100_000}\n{log}")
    board.show_failures()
    shown = printed(lab.console)
    assert "last line" in shown
    assert "first" not in shown
    assert "whole log: " in shown
    assert len(shown) < 4000


def test_of_very_many_metrics_some_are_shown_and_the_rest_counted(
    tmp_path: Path, store: Store, console: Console
) -> None:
    lab = Lab(tmp_path, store, console)
    lab.run(product=lab.product())
    (made,) = Catalog(store).history("multiply")
    many = replace(made, metrics={f"metric_{i:05d}": i for i in range(50_000)})
    for results in ({"one": many}, {f"{'long name ' * 3}{i}": many for i in range(9)}):
        before = len(printed(console))
        show_results(console, store, results)
        shown = printed(console)[before:].replace("\n", "")
        assert "metric_00040" not in shown
        assert f"and 49960 more metrics: temper show {made.name}" in shown


def test_the_log_of_one_line_is_cut_from_its_end(tmp_path: Path, store: Store) -> None:
    """As a progress bar writes it, without a newline."""
    lab = Lab(tmp_path, store, Console(file=io.StringIO(), width=120))
    step = fail(lab.numbers(), lab.journal)
    plan, resolver = make_plan({"broken": step}, store), Resolver(Catalog(store))
    board = Board(lab.console, plan, resolver)
    log = tmp_path / "log.txt"
    log.write_bytes(b"a" * 100_000 + b"\x1b[2J" + b"b" * 100)
    board.observe(step.fingerprint, "failed", f"broken\n{log}")
    board.show_failures()
    assert len(printed(lab.console)) < 2000
    assert "\x1b[2J" not in printed(lab.console)
