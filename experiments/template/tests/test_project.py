"""Tests of this project's step, loss and checker, and of its whole experiment."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import torch

from own_checker import ShortAnswer
from own_loss import ShiftedDpo
from own_step import drop_long
from pipeline import File, run
from steps.checking.verdicts import Answered, Verdict
from steps.data.load.config import LoadConfig
from steps.load_preferences import load_preferences
from steps.losses.base import PairLogps

PROJECT = Path(__file__).parents[1]


def test_pairs_with_a_long_response_are_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "chosen": "yes " * n, "rejected": f"no {n}"} for n in (1, 2, 300)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pairs = load_preferences(File(str(file)), config=LoadConfig(test_fraction=0.0))
    dropped = drop_long(pairs, longest=100)
    made = run({"kept": dropped}, store=str(tmp_path / "store"), verbosity=-1)
    assert made["kept"].metrics["train"] == 2
    assert made["kept"].metrics["train left out"] == 1


def test_the_loss_of_a_policy_that_equals_its_reference_follows_from_the_shift() -> None:
    same = torch.tensor([-3.0, -5.0], dtype=torch.float64)
    count = torch.tensor([2, 4])
    logps = PairLogps(same, same, count, count, same, same)
    losses = ShiftedDpo(shift=1.0).per_pair(logps).losses
    assert torch.allclose(losses, torch.tensor(math.log(1 + math.e)).double())


def test_the_checker_wants_the_answer_and_few_words() -> None:
    checker = ShortAnswer(most_words=3)
    assert checker.check(Answered("Rome.", "rome")).verdict is Verdict.right
    assert checker.check(Answered("Paris.", "rome")).verdict is Verdict.wrong
    assert checker.check(Answered("I think it is Rome.", "rome")).verdict is Verdict.wrong
    assert checker.check(Answered("Rome.", None)).verdict is Verdict.none


def test_the_experiment_runs_and_then_everything_is_cached(
    tiny_model: Path, tmp_path: Path
) -> None:
    command = [
        sys.executable, "experiment.py", "model=local", f"model.path={tiny_model}",
        f"store={tmp_path}", "dpo.max_steps=2", "answering.max_new_tokens=4",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def output() -> str:
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "model" in output()
    assert "nothing to run" in output()
