"""The verifiable experiment at the size it has by default: in a file of its own, as it takes as long
as all others, beside which it runs."""

from pathlib import Path

import pytest
from test_experiments import Desk


@pytest.mark.slow
def test_the_preference_signal_transfers_and_shuffled_labels_do_not(
    repository: Path, tmp_path: Path
) -> None:
    desk = Desk(repository, "dpo_arithmetic", tmp_path, ())
    shown = desk.run().stdout
    for name in ("SFT", "DPO", "shuffled labels", "exact_match"):
        assert name in shown
    sft, dpo, shuffled = (m.metrics["exact_match"] for m in desk.made("score_completions"))
    assert dpo["low"] > sft["high"]
    assert shuffled["high"] < dpo["low"]
    # training on as it is may do a little, in either direction
    assert abs(shuffled["value"] - sft["value"]) < 0.5 * (dpo["value"] - sft["value"])
