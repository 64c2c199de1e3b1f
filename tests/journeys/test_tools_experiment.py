"""The experiment with a tool, at the smallest size at which a model learns to call it; it takes
long, so it has a file to itself."""

from pathlib import Path

import pytest
from experiment_desk import Desk

SMALL = (
    "train_problems=24", "test_problems=4", "iterations=2", "segment=1", "replay=true",
    "shape.hidden_size=48", "shape.layers=2", "shape.heads=2", "shape.feed_forward=96",
    "sft.max_steps=60", "sft.batch_size=24", "sft.optimizer.learning_rate=5e-3",
    "rl.prompts=4", "rl.completions=4", "rl.max_new_tokens=48", "answering.max_new_tokens=48",
)  # fmt: skip


@pytest.mark.slow
def test_a_tool_is_called_in_training_and_a_replay_ends_with_the_same_bits(
    repository: Path, tmp_path: Path
) -> None:
    desk = Desk(repository, "grpo_tools", tmp_path, SMALL)
    shown = desk.run_here().stdout
    for name in ("SFT", "after 1", "after 2, replayed"):
        assert name in shown
    runs = desk.made("train_online")
    assert {run.metrics["iterations"] for run in runs} == {1, 2}
    assert all(run.metrics["first"]["completions/mean_turns"] > 1 for run in runs)
    replayed = desk.made("train_on_rollouts")
    assert {m.digest_of("model") for m in runs} == {m.digest_of("model") for m in replayed}
