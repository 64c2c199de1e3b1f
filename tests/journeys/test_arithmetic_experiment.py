"""The verifiable experiment, with as little supervised training as its claim bears; it takes long,
so it has a file to itself, and others run beside it."""

from pathlib import Path
from typing import Any

import pytest
from experiment_desk import Desk

SMALL = ("sft.max_steps=150", "sft.batch_size=64", "sft.optimizer.learning_rate=5e-3")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SMALL, pytest.param((), marks=pytest.mark.attack)])
def test_the_preference_signal_transfers_and_shuffled_labels_do_not(
    repository: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    desk = Desk(repository, "dpo_arithmetic", tmp_path, settings)
    shown = desk.run_here().stdout
    for name in ("SFT", "DPO", "shuffled labels", "exact match"):
        assert name in shown
    sft, dpo, shuffled = (m.metrics["exact_match"] for m in desk.made("score_completions"))
    assert is_above(dpo, sft)
    assert is_above(dpo, shuffled)
    # training on as it is may do a little, in either direction
    assert abs(shuffled["value"] - sft["value"]) < 0.5 * (dpo["value"] - sft["value"])


def is_above(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """One result is higher, and neither lies in the interval of the other."""
    return one["low"] > other["value"] and one["value"] > other["high"]
