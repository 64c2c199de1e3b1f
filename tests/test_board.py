"""The live view, rendered as a terminal would show it."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from toy_steps import slow_count

from pipeline import Store
from pipeline.board import Board
from pipeline.catalog import Catalog
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
