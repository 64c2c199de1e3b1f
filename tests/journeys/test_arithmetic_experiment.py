"""The verifiable experiment, with as little supervised training as its claim bears; it takes long,
so it has a file to itself, and others run beside it."""

from pathlib import Path

import pytest
from experiment_desk import Desk

SMALL = ("sft.max_steps=150", "sft.batch_size=64", "sft.optimizer.learning_rate=5e-3")


@pytest.mark.slow
def test_the_preference_signal_transfers_and_shuffled_labels_do_not(
    repository: Path, tmp_path: Path
) -> None:
    desk = Desk(repository, "dpo_arithmetic", tmp_path, SMALL)
    shown = desk.run_here().stdout
    for name in ("SFT", "DPO", "shuffled labels", "exact match"):
        assert name in shown
    sft, dpo, shuffled = (m.metrics["exact_match"] for m in desk.made("score_completions"))
    assert dpo["low"] > sft["high"]
    assert shuffled["high"] < dpo["low"]
    # training on as it is may do a little, in either direction
    assert abs(shuffled["value"] - sft["value"]) < 0.5 * (dpo["value"] - sft["value"])
