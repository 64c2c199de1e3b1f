"""Whole online runs beside TRL's `GRPOTrainer`: the same model, completions, rewards and rate, in
float32. `benchmarks/trl_online.py` recorded every update of TRL's.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_models import log_of

from benchmarks import trl_online, trl_steps
from steps.generation.engine import Finish
from steps.models.workplace import Workplace
from steps.online.config import RlConfig
from steps.online.methods.policy_gradient import Advantage, Kl, Over, PolicyGradient, Ratio
from steps.online.online_run import Folders, run_replay
from steps.online.rollouts import Rollout, write_rollouts
from steps.training.config import OptimizerConfig, Schedule

OURS: dict[str, dict[str, Any]] = {
    "grpo": {"over": Over.response},
    "grpo, two passes": {"over": Over.response},
    "grpo with KL, two passes": {"over": Over.response, "kl": Kl.k3_weighted, "kl_weight": 0.04},
    "grpo with KL of the paper, two passes": {
        "over": Over.response,
        "kl": Kl.k3,
        "kl_weight": 0.04,
    },
    "dr_grpo, two passes": {"over": Over.constant, "advantage": Advantage.group_mean},
    "dapo, two passes": {"over": Over.token, "clip_high": 0.28},
    "dapo without what was cut": {"over": Over.token, "clip_high": 0.28, "mask_cut": True},
    "cispo, two passes": {
        "over": Over.token,
        "ratio": Ratio.detached,
        "clip_low": None,
        "clip_high": 0.28,
    },
    "gspo, two passes": {"over": Over.response, "ratio": Ratio.sequence},
}
THEIRS: dict[str, list[dict[str, float]]] = json.loads(trl_online.GOLDEN.read_text())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "model"
    trl_steps.write_model(folder)
    return folder


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    write_rollouts(folder, _rollouts())
    return folder


def _rollouts() -> list[Rollout]:
    return [
        Rollout(
            row=f"{number:03d}",
            k=k,
            prompt_ids=tuple(answered.prompt),
            ids=tuple(ids),
            scored=(True,) * len(ids),
            logps=(-1.0,) * len(ids),  # of a sampler that nothing here corrects for
            finish=Finish.stop if ids[-1] == trl_steps.END else Finish.length,
            weights="made up",
            iteration=number // trl_online.PROMPTS,
            rewards={"made up": reward},
        )
        for number, answered in enumerate(trl_online.answered())
        for k, (ids, reward) in enumerate(zip(answered.completions, answered.rewards, strict=True))
    ]


@pytest.mark.parametrize("name", OURS)
def test_every_iteration_has_the_loss_and_gradient_that_trl_has(
    model: Path, recording: Path, tmp_path: Path, name: str
) -> None:
    passes = trl_online.RUNS[name].get("num_iterations", 1)
    method = {"advantage": Advantage.group_std, "skip_without_signal": False, **OURS[name]}
    config = RlConfig(
        method=PolicyGradient(**method),
        prompts=trl_online.PROMPTS,
        completions=trl_online.COMPLETIONS,
        max_new_tokens=trl_online.LONGEST,
        inner_epochs=passes,
        optimizer=OptimizerConfig(trl_online.RATE, schedule=Schedule.constant),
    )
    run_replay(Folders(model), config, recording, Workplace(tmp_path / "out", tmp_path / "scratch"))

    ours = log_of(tmp_path / "out")
    assert len(ours) == trl_online.ITERATIONS
    for value, near in (
        ("loss", {"abs": 1e-5, "rel": 0}),
        ("grad_norm", {"abs": 0, "rel": 1e-4}),
    ):
        theirs = _means([update[value] for update in THEIRS[name]], passes)
        assert [line[value] for line in ours] == pytest.approx(theirs, **near)


def _means(values: Sequence[float], count: int) -> list[float]:
    """The mean of each `count` values in a row: an iteration's line has that of its updates."""
    return [sum(values[n : n + count]) / count for n in range(0, len(values), count)]
