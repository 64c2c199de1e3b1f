"""Twenty steps beside TRL's `DPOTrainer`: the same model, pairs, order and rate, in float32.

What TRL came to was recorded by `benchmarks/trl_steps.py`, so TRL is not needed here.
"""

import json
from pathlib import Path

import pytest
from tiny_models import log_of
from trl_records import records

from benchmarks import trl_steps
from steps.losses.dpo import Dpo
from steps.models.workplace import Workplace
from steps.scoring.reference import run_reference
from steps.training.config import DpoConfig, OptimizerConfig, Schedule
from steps.training.recipes import run_dpo


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict, dict]]:
    """Ours beside TRL's."""
    work = tmp_path_factory.mktemp("twenty-steps")
    trl_steps.write_model(work / "model")
    config = DpoConfig(
        batch_size=trl_steps.BATCH_SIZE,
        optimizer=OptimizerConfig(trl_steps.RATE, Schedule.constant),
        loss=Dpo(trl_steps.BETA),
    )
    run_reference(
        work / "model",
        records(),
        config.reference(),
        Workplace(work / "reference", work / "reference-scratch"),
    )
    run_dpo(
        work / "model",
        records(),
        work / "reference",
        config,
        Workplace(work / "out", work / "scratch"),
    )
    ours = log_of(work / "out")
    theirs = json.loads(Path(trl_steps.GOLDEN).read_text())
    return list(zip(ours, theirs, strict=True))


def test_every_step_has_the_loss_that_trl_has(steps: list[tuple[dict, dict]]) -> None:
    assert len(steps) == 20
    for ours, theirs in steps:
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)


def test_the_steps_are_not_all_alike(steps: list[tuple[dict, dict]]) -> None:
    losses = [theirs["loss"] for _, theirs in steps]
    assert max(losses) - min(losses) > 0.2


@pytest.mark.parametrize("name", trl_steps.LOGGED)
def test_every_metric_of_a_step_is_the_one_that_trl_logs(
    steps: list[tuple[dict, dict]], name: str
) -> None:
    for ours, theirs in steps:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-3)
