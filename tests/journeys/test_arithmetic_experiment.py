"""The verifiable experiment: that it comes to its end; and its claim, in ``make attack``."""

from pathlib import Path
from typing import Any

import pytest
from experiment_desk import Desk

SMALL = (
    "train_problems=20", "test_problems=5", "sft.max_steps=40", "sft.batch_size=16",
    "sft.optimizer.learning_rate=5e-3", "dpo.max_steps=2", "dpo.batch_size=4",
)  # fmt: skip
"""Few enough to be learnt by heart, so that some samples are right and some are wrong."""


@pytest.mark.slow
def test_the_experiment_comes_to_its_end(repository: Path, tmp_path: Path) -> None:
    """The labels of so few pairs may be shuffled into what they were."""
    desk = scored(repository, tmp_path, *SMALL)
    assert len(desk.made("score_completions")) > 1


@pytest.mark.attack
def test_the_preference_signal_transfers_and_shuffled_labels_do_not(
    repository: Path, tmp_path: Path
) -> None:
    desk = scored(repository, tmp_path)
    scores = (made.metrics["exact_match"] for made in desk.made("score_completions"))
    untrained, sft, dpo, shuffled = scores
    assert is_above(sft, untrained)
    assert is_above(dpo, sft)
    assert is_above(dpo, shuffled)
    # training on as it is may do a little, in either direction
    assert abs(shuffled["value"] - sft["value"]) < 0.5 * (dpo["value"] - sft["value"])


def scored(repository: Path, folder: Path, *settings: str) -> Desk:
    desk = Desk(repository, "dpo_arithmetic", folder, settings)
    shown = desk.run_here().stdout
    for name in ("SFT", "DPO", "shuffled labels", "exact match"):
        assert name in shown
    return desk


def is_above(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """One result is higher, and neither lies in the interval of the other."""
    return one["low"] > other["value"] and one["value"] > other["high"]
