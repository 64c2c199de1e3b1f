"""An online run that is killed, sampling or training, ends as if it had never been killed."""

import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fresh_processes import exit_code
from online_bed import play_until, rollouts_of, run_until
from tiny_models import folder_bytes, model_folder

from steps.online.methods.distill import Distill

ITERATIONS = 4
COMPLETIONS = 4 * 6
"""Of one iteration."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_folder(folders := tmp_path_factory.mktemp("models") / "teacher", seed=1)
    return model_folder(folders.with_name("policy"))


@pytest.fixture(scope="module")
def undisturbed(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is never killed."""
    work = tmp_path_factory.mktemp("undisturbed")
    assert attempt(policy, work) == 0
    return work


def attempt(
    policy: Path, work: Path, training: int = 0, sampling: int = 0, until: Any = run_until
) -> int | None:
    """Goes on with a run in a process of its own; how that ended."""
    return exit_code(until, policy, work, ITERATIONS, training, sampling)


@pytest.mark.slow
def test_kills_while_sampling_and_while_training_leave_the_same_bits(
    policy: Path, undisturbed: Path, tmp_path: Path
) -> None:
    # Of the second iteration, of its end, after its training, and of what is left then.
    for kill in ({"sampling": 31}, {"sampling": 24}, {"training": 2}, {"training": 3}):
        assert attempt(policy, tmp_path, **kill) == -signal.SIGKILL
    assert attempt(policy, tmp_path) == 0
    assert folder_bytes(tmp_path / "out") == folder_bytes(undisturbed / "out")
    assert rollouts_of(tmp_path) == rollouts_of(undisturbed)


@pytest.mark.attack
def test_kills_at_random_moments_leave_the_same_bits(
    policy: Path, undisturbed: Path, tmp_path: Path
) -> None:
    draw = random.Random(0)
    for number in range(20):
        work = tmp_path / f"{number}"
        if draw.random() < 0.7:
            kill = {"sampling": draw.randrange(1, ITERATIONS * COMPLETIONS)}
        else:
            kill = {"training": draw.randrange(1, ITERATIONS)}
        assert attempt(policy, work, **kill) == -signal.SIGKILL
        assert attempt(policy, work) == 0
        assert folder_bytes(work / "out") == folder_bytes(undisturbed / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    "until",
    [
        play_until,
        partial(run_until, lag=1),
        partial(run_until, method=Distill(beta=0.5, reward_weight=1.0, top_k=8)),
    ],
)
def test_kills_leave_the_same_bits_of_episodes_of_a_lag_and_with_a_teacher(
    policy: Path, tmp_path: Path, until: Any
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert attempt(policy, whole, until=until) == 0
    for kill in ({"sampling": 40}, {"training": 2}):
        assert attempt(policy, killed, until=until, **kill) == -signal.SIGKILL
    assert attempt(policy, killed, until=until) == 0
    assert folder_bytes(killed / "out") == folder_bytes(whole / "out")
    assert rollouts_of(killed) == rollouts_of(whole)
    assert until is not play_until or not all(all(rollout.scored) for rollout in rollouts_of(whole))
