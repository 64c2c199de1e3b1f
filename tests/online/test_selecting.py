"""From judged rollouts to demonstrations and pairs: the tokens that were drawn, and no others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from step_output import Folder
from tiny_models import VOCABULARY, model_folder, word_tokenizer

from steps.checking.verdicts import Verdict
from steps.data.rows.parquet import read_rows, write_rows
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import PROMPTS, to_record
from steps.generation.engine import Finish
from steps.models.workplace import Workplace
from steps.online.rollouts import Rollout, write_rollouts
from steps.online.selecting import write_demonstrations, write_pairs
from steps.online.selection import Best, Pairs
from steps.scoring.config import ReferenceConfig
from steps.scoring.examples import read_demonstrations, read_pairs
from steps.scoring.reference import run_reference
from steps.select_demonstrations import select_demonstrations
from steps.select_pairs import select_pairs
from steps.train_sft import train_sft
from steps.training.config import TrainConfig


def drawn(row: str, k: int, ids: tuple[int, ...], reward: float | None, **fields: Any) -> Rollout:
    rewards = {} if reward is None else {"checker": reward}
    settings = {"finish": Finish.stop, "scored": (True,) * len(ids)} | fields
    logps = (-0.5,) * len(ids)
    return Rollout(row, k, (5, 6), ids, logps=logps, weights="w", rewards=rewards, **settings)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Of one prompt two right answers that are equal, a wrong one and one that was cut; of another
    graded ones, of a third only wrong ones, of a fourth none with a verdict."""
    rollouts = [
        drawn("a", 0, (7, 2), 0.0),
        drawn("a", 1, (8, 9, 2), 1.0),
        drawn("a", 2, (8, 9, 2), 1.0),
        drawn("a", 3, (9, 9, 9), 1.0, finish=Finish.length),
        drawn("b", 0, (7, 2), 0.5),
        drawn("b", 1, (9, 2), 0.1),
        drawn("b", 2, (10, 11, 2), 2.0, scored=(True, False, True)),
        drawn("b", 3, (12, 2), 1.0),
        drawn("c", 0, (7, 2), 0.0),
        drawn("c", 1, (8, 2), 0.0),
        drawn("d", 0, (7, 2), None),
        drawn("d", 1, (8, 2), 1.0, verdict=Verdict.none),  # of a second checker: a part of a sum
    ]
    folder = tmp_path / "recording"
    folder.mkdir()
    write_rollouts(folder, rollouts)
    rows = [PromptRow(row, ({"role": "user", "content": "w1 w2"},)) for row in "abcd"]
    write_rows(folder / "prompts-00000.parquet", PROMPTS, map(to_record, rows))
    word_tokenizer().save_pretrained(folder)
    return folder


def demonstrated(recording: Path, how: Best) -> list[tuple[str, tuple[int, ...]]]:
    output = recording.parent / "out"
    write_demonstrations(recording, how, output)
    groups = read_demonstrations(read_rows(output / "tokens-00000.parquet"), VOCABULARY)
    assert all(group.prompt_ids[:2] == (5, 6) for group in groups)
    return [(group.row, group.responses[0].ids) for group in groups]


def test_one_right_completion_of_each_prompt_is_imitated(recording: Path) -> None:
    assert demonstrated(recording, Best()) == [("0/a/1", (8, 9, 2)), ("0/b/2", (10, 11, 2))]


def test_what_the_policy_did_not_draw_is_context(recording: Path) -> None:
    output = recording.parent / "out"
    write_demonstrations(recording, Best(), output)
    record = read_rows(output / "tokens-00000.parquet")[1]
    assert record["input_ids"] == [5, 6, 10, 11, 2]
    assert record["mask"] == [False, False, True, False, True]


def test_what_was_cut_or_has_no_reward_is_left_out_and_counted(recording: Path) -> None:
    for write, how in ((write_demonstrations, Best()), (write_pairs, Pairs())):
        metrics = write(recording, how, recording.parent / "out")  # pyright: ignore
        told = {name: metrics[name] for name in ("prompts", "completions", "cut", "without_reward")}
        assert told == {"prompts": 4, "completions": 12, "cut": 1, "without_reward": 2}
        assert metrics["prompts_used"] == 2


def test_the_ledger_says_of_each_completion_why_it_is_not_used(recording: Path) -> None:
    output = recording.parent / "out"
    write_pairs(recording, Pairs(), output)
    ledger = {entry["row"]: entry for entry in read_rows(output / "ledger.parquet")}
    assert list(ledger) == [
        *(f"0/a/{k}" for k in range(4)), *(f"0/b/{k}" for k in range(4)),
        "0/c/0", "0/c/1", "0/d/0", "0/d/1",
    ]  # fmt: skip
    kept = [row for row, entry in ledger.items() if entry["outcome"] == "kept"]
    assert kept == ["0/a/0", "0/a/1", "0/b/1", "0/b/2"]
    reasons = {row: entry["reason"] for row, entry in ledger.items()}
    assert reasons["0/a/2"] == "duplicate"
    assert reasons["0/a/3"] == "cut"
    assert reasons["0/b/3"] == reasons["0/c/0"] == "not among the best"
    assert reasons["0/d/0"] == reasons["0/d/1"] == "no reward"
    assert ledger["0/b/3"]["detail"] == "its reward is 1"


def test_completions_that_cannot_be_compared_are_refused(recording: Path) -> None:
    """A pair would have the prompt of one completion and the answer to another prompt."""
    other = drawn("a", 1, (8, 2), 1.0)
    prompted = Rollout(**{**vars(other), "prompt_ids": (5, 7)})
    for second, told in (
        (prompted, "different prompts as those of row 'a'"),
        (drawn("a", 0, (8, 2), 1.0), "several completions of one number of row 'a'"),
    ):
        write_rollouts(recording, [drawn("a", 0, (7, 2), 0.0), second])
        with pytest.raises(ValueError, match=told):
            write_pairs(recording, Pairs(), recording.parent / "out")
    write_rollouts(recording, [drawn("z", 0, (7, 2), 0.0), drawn("z", 1, (8, 2), 1.0)])
    with pytest.raises(ValueError, match="there is no prompt for row 'z'"):
        write_pairs(recording, Pairs(), recording.parent / "out")


def test_pairs_are_the_best_against_the_worst(recording: Path) -> None:
    output = recording.parent / "out"
    write_pairs(recording, Pairs(per_prompt=2), output)
    records = read_rows(output / "tokens-00000.parquet")
    sides = [tuple(r.ids for r in g.responses) for g in read_pairs(records, VOCABULARY)]
    assert sides == [
        ((8, 9, 2), (7, 2)),
        ((10, 11, 2), (9, 2)),
        ((12, 2), (7, 2)),
    ]
    assert [(r["score_chosen"], r["score_rejected"]) for r in records] == [
        (1, 0),
        (2, 0.1),
        (1, 0.5),
    ]
    assert {r["prompt"][0]["content"] for r in records} == {"w1 w2"}
    assert all(r["shared_prefix"] == 2 for r in records)


def test_trainers_take_what_was_selected(recording: Path, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "policy")
    policy: Any = SimpleNamespace(path=folder, step="policy", digest="0" * 32)
    chosen, pairs, trained = (Folder(tmp_path / name) for name in ("chosen", "pairs", "trained"))
    given: Any = SimpleNamespace(path=recording, step="judge", digest="0" * 32)
    told = select_demonstrations.function(chosen, given), select_pairs.function(pairs, given)
    assert [dict(metrics or {})["prompts_used"] for metrics in told] == [2, 2]
    config = TrainConfig(max_steps=1)
    demonstrations: Any = SimpleNamespace(path=chosen.path, step="chosen", digest="0" * 32)
    train_sft.function(trained, demonstrations, policy, config)
    assert (trained.path / "model.safetensors").is_file()
    groups = read_pairs(read_rows(pairs.path), VOCABULARY)
    place = Workplace(tmp_path / "reference", tmp_path / "scratch")
    scored = run_reference(policy.path, read_rows(pairs.path), ReferenceConfig(), place)
    assert scored["groups"] == len(groups) == 2
