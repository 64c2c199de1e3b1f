"""Online training with an environment: episodes of several turns, as the token ids they were."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chat_families import families
from step_output import Folder
from tiny_models import VOCABULARY, folder_bytes, log_of, model_folder, word_tokenizer
from worlds import Echo, Said

from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Verdict
from steps.data.rows.parquet import write_rows
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import PROMPTS, to_record
from steps.data.tokens.encoding import encoder
from steps.data.tokens.rendering import Chat, chat_format, render
from steps.environments.environment import says
from steps.environments.playing import replying
from steps.generation.engine import Finish, Request
from steps.generation.slots import SlotEngine
from steps.judge import judge
from steps.models.folders import load_model
from steps.models.workplace import Left, Workplace
from steps.online.config import RlConfig
from steps.online.environment_tokens import Observed
from steps.online.episodes import World
from steps.online.methods.policy_gradient import PolicyGradient, Ratio
from steps.online.online_run import Folders, run_replay
from steps.online.recording import record
from steps.online.rollouts import Rollout, read_rollouts, write_rollouts
from steps.train_on_rollouts import train_on_rollouts
from steps.train_online import train_online
from steps.training.config import OptimizerConfig, Schedule

STOPS = tuple(range(2, 14))
"""So many that turns of a random model are short."""
LONGEST = 24
EAGER = OptimizerConfig(learning_rate=1e-2, schedule=Schedule.constant)
ROWS = [PromptRow(f"q{n}", ({"role": "user", "content": f"w{n} w3"},), "w3") for n in range(5)]
ECHO = Echo()


def rl(method: Any, **settings: Any) -> RlConfig:
    fixed: dict[str, Any] = {
        "prompts": 4, "completions": 4, "max_new_tokens": LONGEST, "tokens_per_forward": 64,
        "optimizer": EAGER, "slots": 8,
    }  # fmt: skip
    return RlConfig(method=method, **{**fixed, **settings})


def artifact(path: Path) -> Any:
    return SimpleNamespace(path=path, step=path.name, digest="0" * 32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Prompts, and a policy that ends turns with many tokens."""
    folder = tmp_path_factory.mktemp("episodes")
    write_rows(folder / "prompts" / "prompts-00000.parquet", PROMPTS, map(to_record, ROWS))
    word_tokenizer().save_pretrained(model_folder(folder / "policy"))
    recipe = {"eos_token_id": list(STOPS)}
    (folder / "policy" / "generation_config.json").write_text(json.dumps(recipe))
    return folder / "prompts", folder / "policy"


def online(
    folders: tuple[Path, Path], work: Path, iterations: int, start: Path | None = None,
    echo: Echo = ECHO, **settings: Any
) -> Path:  # fmt: skip
    prompts, policy = map(artifact, folders)
    out: Any = Folder(work / "made", work / "scratch")
    train_online.function(
        out, prompts, policy, iterations, config=rl(PolicyGradient(), **settings),
        judging=JudgeConfig(most_without=1.0), start=start and artifact(start), environment=echo,
    )  # fmt: skip
    return out.path


@pytest.fixture(scope="module")
def run(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return online(folders, tmp_path_factory.mktemp("run"), 2)


# --- a run ----------------------------------------------------------------------------------------


def test_episodes_are_recorded_with_what_was_drawn_and_what_was_replied(run: Path) -> None:
    rollouts = list(read_rollouts(run / "rollouts"))
    assert {r.finish for r in rollouts} == {Finish.stop, Finish.length}
    replied = [r for r in rollouts if not all(r.scored)]
    assert len(replied) > len(rollouts) / 2
    for rollout in replied:
        pieces = list(zip(rollout.ids, rollout.scored, rollout.logps, strict=True))
        assert all((logp < 0) == drawn for _, drawn, logp in pieces)
        end = rollout.scored.index(False)
        assert rollout.ids[end - 1] in STOPS
        assert rollout.ids[end : end + 3] == (*rollout.ids[: min(2, end)], 1)[:3] or end == 1
    for rollout in rollouts:
        assert list(rollout.rewards) == ["echo"]
        assert (rollout.reason == "cut at max_new_tokens") == (rollout.finish is Finish.length)
        assert rollout.finish is Finish.stop or rollout.rewards["echo"] == 0
    line = log_of(run)[0]
    assert line["completions/mean_turns"] > 1
    assert line["mismatch/k3"] < 1e-9
    assert line["ratio/at_start"] == 0


def test_slots_segments_and_a_replay_end_with_the_bits_of_one_run(
    folders: tuple[Path, Path], run: Path, tmp_path: Path
) -> None:
    one = online(folders, tmp_path / "one", 1, slots=3)
    two = online(folders, tmp_path / "two", 1, one / "state")
    again: Any = Folder(tmp_path / "again")
    train_on_rollouts.function(
        again, artifact(run / "rollouts"), artifact(folders[1]), rl(PolicyGradient())
    )
    for part in ("model", "state"):
        assert folder_bytes(two / part) == folder_bytes(run / part)
        assert folder_bytes(again.path / part) == folder_bytes(run / part)


def test_an_environment_that_dies_gives_no_verdict_which_is_counted(
    folders: tuple[Path, Path], run: Path, tmp_path: Path
) -> None:
    first = next(read_rollouts(run / "rollouts"))
    made = online(folders, tmp_path, 1, echo=Echo(fails=first.ids[0]))
    failed = [r for r in read_rollouts(made / "rollouts") if r.verdict is Verdict.none]
    assert failed
    assert {r.finish for r in failed} == {Finish.error}
    assert all(r.rewards == {"echo": None} for r in failed)
    assert all("process ended" in str(r.reason) for r in failed)
    assert log_of(made)[0]["completions/unscorable"] == len(failed)


def test_episodes_that_are_drawn_in_many_attempts_are_the_same(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    model = load_model(folders[1])
    requests = [
        Request(row.row, k, (3, n + 5), LONGEST, 1.0, STOPS)
        for n, row in enumerate(ROWS)
        for k in range(3)
    ]
    with replying(Echo(), JudgeConfig()) as judges:
        assert judges is not None
        world = World(judges, {row.row: row for row in ROWS}, word_tokenizer())
        place = Workplace(tmp_path / "o", tmp_path / "whole")
        whole = record(SlotEngine(model, "w"), requests, place, world)
        attempts = 0
        while True:
            attempts += 1
            stops = iter([False] * attempts)
            place = Workplace(
                tmp_path / "o", tmp_path / "parts", stopping=lambda s=stops: next(s, True)
            )
            try:
                parts = record(SlotEngine(model, "w", slots=attempts), requests, place, world)
                break
            except Left:
                continue
    assert attempts > 2
    for name, rollouts in (("first", whole), ("second", parts)):
        (tmp_path / name).mkdir()
        write_rollouts(tmp_path / name, rollouts)
    assert folder_bytes(tmp_path / "first") == folder_bytes(tmp_path / "second")


# --- learning -------------------------------------------------------------------------------------


def trained(policy: Path, work: Path, rollouts: list[Rollout]) -> tuple[dict[str, Any], Any]:
    """After one update without a ratio: its log, and the weights."""
    work.mkdir()
    write_rollouts(work, rollouts)
    config = rl(PolicyGradient(ratio=Ratio.none, clip_low=None, clip_high=None))
    place = Workplace(work / "out", work / "scratch")
    run_replay(Folders(policy), config, work, place)
    return log_of(work / "out")[0], load_model(work / "out" / "model").state_dict()


def made_up(scored: tuple[bool, ...], k: int, reward: float) -> Rollout:
    ids = tuple((7 * n + 11 * k) % VOCABULARY for n in range(len(scored)))
    logps = tuple(-1.0 if drawn else 0.0 for drawn in scored)
    return Rollout(
        "q", k, (3, 4), ids, scored, logps, Finish.stop, "w", rewards={"r": reward},
        policy_logps=logps,
    )  # fmt: skip


def test_the_loss_is_that_of_the_drawn_tokens_alone(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    yes, no = True, False
    episodes = [
        made_up((yes, yes, no, no, no, yes), 0, 1.0),
        made_up((yes, no, yes, no, yes, yes, yes), 1, 0.0),
        made_up((no, no, yes), 2, 0.25),
    ]
    line, _ = trained(folders[1], tmp_path / "w", episodes)
    model = load_model(folders[1]).eval()
    expected = 0.0
    for rollout in episodes:
        others = [r.reward for r in episodes if r is not rollout]
        advantage = rollout.reward - sum(others) / len(others)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*rollout.prompt_ids, *rollout.ids]])).logits
        logps = logits[0, 1:-1].double().log_softmax(dim=-1)
        drawn = (logps[n, token] for n, token in enumerate(rollout.ids) if rollout.scored[n])
        expected -= advantage * float(sum(drawn)) / (len(episodes) * LONGEST)
    assert line["loss"] == pytest.approx(expected, rel=1e-5)
    assert line["completions/mean_length"] == pytest.approx((3 + 5 + 1) / 3)


def test_what_was_not_drawn_is_context_like_a_prompt(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """A reply before all that was drawn, and the same tokens as the end of the prompt."""
    context = (9, 8, 7)
    one_turn = [
        replace(made_up((True,) * (3 + k), k, k / 3), prompt_ids=(3, 4, *context)) for k in range(3)
    ]
    episodes = [
        replace(
            r, prompt_ids=(3, 4), ids=(*context, *r.ids), scored=(False,) * 3 + r.scored,
            logps=(0.0,) * 3 + r.logps, policy_logps=(0.0,) * 3 + r.logps,
        )
        for r in one_turn
    ]  # fmt: skip
    plain, weights = trained(folders[1], tmp_path / "plain", one_turn)
    line, other = trained(folders[1], tmp_path / "episodes", episodes)
    for name in ("loss", "grad_norm", "completions/mean_length", "reward"):
        assert line[name] == pytest.approx(plain[name], rel=1e-5)
    for name, tensor in weights.items():
        torch.testing.assert_close(other[name], tensor, atol=1e-5, rtol=1e-4)


# --- judging --------------------------------------------------------------------------------------


def test_a_checker_is_given_the_last_turn(run: Path, tmp_path: Path) -> None:
    out: Any = Folder(tmp_path / "made")
    config = JudgeConfig(most_without=1.0)
    judge.function(out, artifact(run / "rollouts"), Said(), config)
    tokenizer = word_tokenizer()
    for rollout in read_rollouts(out.path):
        text = tokenizer.decode(list(rollout.last_turn), skip_special_tokens=True)
        assert (rollout.reason or "") == text
    episode = next(r for r in read_rollouts(out.path) if not all(r.scored))
    assert len(episode.last_turn) < len(episode.ids)


# --- replies as tokens ----------------------------------------------------------------------------

ASKED: Any = {"role": "user", "content": "What is 2 + 2?"}
CALLED: Any = {"role": "assistant", "content": "2 + 2"}
REPLY = '"4", it says\n4'


@pytest.mark.parametrize(
    ("name", "role"),
    [("chatml", "tool"), ("qwen2_5", "tool"), ("qwen3", "tool"), ("llama3", "user"),
     ("gemma", "user"), ("mistral", "user")],
)  # fmt: skip
def test_a_reply_continues_the_tokens_as_the_template_would(name: str, role: str) -> None:
    tokenizer = families()[name].tokenizer
    row = PromptRow("r", (ASKED,))
    ids = Observed(tokenizer).ids(says(REPLY, role), row)
    replied: Any = {"role": role, "content": REPLY}
    chat = chat_format(tokenizer)
    whole = render(chat, Chat((ASKED, CALLED, replied)), header=True)
    text: Any = tokenizer.decode(list(ids))
    before = whole.removesuffix(text)
    assert text in whole
    assert REPLY in text
    assert before.endswith(tuple(f"2 + 2{gap}{end}" for end in chat.ends for gap in ("", " ")))
    assert encoder(tokenizer).ids([text]) == [list(ids)]
