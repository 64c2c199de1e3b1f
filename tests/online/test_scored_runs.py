"""Online training whose rewards come from a reward model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from online_bed import rl
from step_output import Folder
from tiny_models import (
    folder_bytes,
    llama,
    model_folder,
    pair_records,
    token_files,
    word_tokenizer,
)
from worlds import Echo, ShortWords

from steps.checking.verdicts import Verdict
from steps.data.rows.parquet import write_rows
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import PROMPTS, to_record
from steps.data.tokens.token_tables import PAIR_TOKENS
from steps.generation.engine import Finish
from steps.judge_with_reward_model import judge_with_reward_model
from steps.online.rollouts import Rollout, read_rollouts
from steps.reward_models.config import RewardConfig
from steps.reward_models.model_rewards import ModelRewards
from steps.train_on_rollouts import train_on_rollouts
from steps.train_online_with_reward_model import train_online_with_reward_model
from steps.train_reward_model import train_reward_model
from steps.training.config import OptimizerConfig

CONFIG = rl(max_new_tokens=9)


def artifact(path: Path) -> Any:
    return SimpleNamespace(path=path, step=path.name, digest="0" * 32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """Prompts, a policy, and a reward model that prefers some words."""
    folder = tmp_path_factory.mktemp("scored")
    rows = [PromptRow(f"q{n}", ({"role": "user", "content": f"w{n} w{n + 1}"},)) for n in range(7)]
    write_rows(folder / "prompts" / "prompts-00000.parquet", PROMPTS, map(to_record, rows))
    word_tokenizer().save_pretrained(model_folder(folder / "policy", llama))
    init = model_folder(folder / "init", lambda: llama(tied=False))
    word_tokenizer().save_pretrained(init)
    made = Folder(folder / "reward")
    tokens = artifact(token_files(folder / "tokens", PAIR_TOKENS, pair_records(8)))
    learning = RewardConfig(batch_size=4, epochs=3, optimizer=OptimizerConfig(learning_rate=1e-2))
    train_reward_model.function(made, tokens, artifact(init), learning)
    return artifact(folder / "prompts"), artifact(folder / "policy"), artifact(made.path)


def online(
    folders: tuple[Any, Any, Any], work: Path, iterations: int, **settings: Any
) -> tuple[Path, Any]:
    prompts, policy, reward = folders
    out = Folder(work / "made", work / "scratch")
    train: Any = train_online_with_reward_model.function
    metrics = train(out, prompts, policy, reward, iterations, CONFIG, **settings)
    return out.path, metrics


@pytest.fixture(scope="module")
def run(
    folders: tuple[Any, Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    return online(folders, tmp_path_factory.mktemp("run"), 3)


def judged_again(recording: Path, model: Any, work: Path) -> list[Rollout]:
    out = Folder(work)
    judge: Any = judge_with_reward_model.function
    judge(out, artifact(recording), model)
    return list(read_rollouts(out.path))


def test_the_rewards_of_a_run_are_those_of_its_recording(
    folders: tuple[Any, Any, Any], run: tuple[Path, Any], tmp_path: Path
) -> None:
    made, metrics = run
    drawn = list(read_rollouts(made / "rollouts"))
    assert {r.finish for r in drawn} == {Finish.stop, Finish.length}
    for rollout in drawn:
        assert rollout.rewards.keys() == {"reward_model"}
        assert rollout.is_rewarded is not rollout.is_cut
        assert rollout.verdict is None
    assert len({rollout.rewards["reward_model"] for rollout in drawn}) > 10
    assert judged_again(made / "rollouts", folders[2], tmp_path / "again") == drawn
    cut = sum(r.is_cut for r in drawn if r.iteration == 2)
    assert metrics["final"]["completions/unscorable"] == cut


def test_segments_and_a_replay_end_with_the_bits_of_one_run(
    folders: tuple[Any, Any, Any], run: tuple[Path, Any], tmp_path: Path
) -> None:
    made, _ = run
    one, _ = online(folders, tmp_path / "one", 2)
    two, _ = online(folders, tmp_path / "two", 1, start=artifact(one / "state"))
    again = Folder(tmp_path / "again")
    train_on_rollouts.function(again, artifact(made / "rollouts"), folders[1], CONFIG)
    for part in ("model", "state"):
        assert folder_bytes(two / part) == folder_bytes(made / part)
        assert folder_bytes(again.path / part) == folder_bytes(made / part)


def test_a_checker_adds_its_reward_and_cut_completions_may_have_one(
    folders: tuple[Any, Any, Any], tmp_path: Path
) -> None:
    alone, _ = online(folders, tmp_path / "alone", 1)
    settings: dict[str, Any] = {"scoring": ModelRewards(of_cut=-2.0), "checker": ShortWords()}
    both, metrics = online(folders, tmp_path / "both", 1, **settings)
    assert metrics["final"]["completions/unscorable"] == 0
    pairs = zip(read_rollouts(alone / "rollouts"), read_rollouts(both / "rollouts"), strict=True)
    for of_model, of_both in pairs:
        right = float(of_both.verdict is Verdict.right)
        score = -2.0 if of_model.is_cut else of_model.rewards["reward_model"]
        assert of_both.rewards == {ShortWords.name: right, "reward_model": score}
    for what, giver in (("checker", ShortWords()), ("environment", Echo())):
        settings = {"scoring": ModelRewards(name=giver.name), what: giver}
        with pytest.raises(ValueError, match=f"{what} and reward model both give a reward named"):
            online(folders, tmp_path / "one-name", 1, **settings)
