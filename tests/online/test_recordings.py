"""Rollouts: token ids as they were drawn, kept over kills, shared by ranks, judged anew."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_processes import run_ranks
from step_output import Folder
from tiny_models import folder_bytes, model_folder, word_tokenizer
from worlds import Halves, OddLength

import steps.online.recording as recorder
from pipeline import TemperError, adopt
from steps.checking.boxed import Boxed
from steps.checking.config import JudgeConfig
from steps.checking.exact import Exact
from steps.checking.verdicts import Checker, Verdict
from steps.data.rows.parquet import write_rows
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import PROMPTS, to_record
from steps.data.vocabularies import TEMPLATE, TOKENIZER
from steps.generation.config import WHOLE, SamplingConfig
from steps.generation.engine import Engine, Finish, Finished, Request
from steps.generation.sampling import make_requests
from steps.generation.slots import SlotEngine
from steps.judge import judge
from steps.kinds import Model, Prompts, Rollouts
from steps.models.folders import load_model
from steps.models.workplace import Left, Workplace
from steps.online.config import RlConfig
from steps.online.iteration_rollouts import Recorded
from steps.online.learning_from import describe, experience_of, overlong
from steps.online.methods.online_dpo import OnlineDpo
from steps.online.recording import record, require_ids, require_whole_distribution
from steps.online.rollouts import Rollout, by_row, read_rollouts, texts, write_rollouts
from steps.sample_rollouts import sample_rollouts
from steps.train_on_rollouts import train_on_rollouts


def prompts_folder(folder: Path, answer: str | None = "w3") -> Path:
    rows = [
        PromptRow(f"q{n}", ({"role": "user", "content": f"w{n} w{n + 1}"},), answer)
        for n in range(7)
    ]
    write_rows(folder / "prompts-00000.parquet", PROMPTS, map(to_record, rows))
    return folder


def policy_folder(folder: Path) -> Path:
    word_tokenizer().save_pretrained(model_folder(folder))
    return folder


CONFIG = SamplingConfig(6, temperature=1.0, num_completions=3, slots=5)
CUT = replace(CONFIG, temperature=0.9, top_p=0.9, top_k=30, min_p=0.001)


def sampled(work: Path, prompts: Path, policy: Path, config: SamplingConfig = CONFIG) -> None:
    work.joinpath("made").mkdir(parents=True, exist_ok=True)
    out: Any = Folder(work / "made", work / "scratch")
    sample_rollouts.function(out, Prompts(prompts, "", ""), Model(policy, "", ""), config)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return prompts_folder(tmp_path / "prompts")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return policy_folder(tmp_path / "policy")


@pytest.fixture
def recording(tmp_path: Path, prompts: Path, policy: Path) -> Path:
    sampled(tmp_path / "recorded", prompts, policy)
    return tmp_path / "recorded" / "made"


# --- what is recorded -----------------------------------------------------------------------------


def test_a_recording_holds_the_tokens_that_were_drawn_and_how_each_completion_ended(
    recording: Path,
) -> None:
    rollouts = list(read_rollouts(recording))
    assert [(r.row, r.k) for r in rollouts] == [(f"q{n}", k) for n in range(7) for k in range(3)]
    end = word_tokenizer().eos_token_id
    assert {r.finish for r in rollouts} == {Finish.stop, Finish.length}
    for rollout in rollouts:
        assert (rollout.ids[-1] == end) != rollout.is_cut
        assert len(rollout.ids) == 6 or not rollout.is_cut
        assert all(rollout.scored)
        assert all(logp < 0 for logp in rollout.logps)
    assert len({r.weights for r in rollouts}) == 1
    assert json.loads((recording / "engine.json").read_text())["batch_invariant"] is True


def test_a_recording_says_from_what_it_was_drawn(
    tmp_path: Path, recording: Path, prompts: Path, policy: Path
) -> None:
    require_whole_distribution(recording)
    for changed in ({"temperature": 0.9}, {"top_p": 0.9}, {"top_k": 30}, {"min_p": 0.001}):
        work, (name, value) = tmp_path / next(iter(changed)), next(iter(changed.items()))
        sampled(work, prompts, policy, replace(CONFIG, **changed))  # pyright: ignore
        told = json.loads((work / "made" / "engine.json").read_text())
        assert {key: told[key] for key in WHOLE} == WHOLE | changed
        with pytest.raises(ValueError, match=f"says {name}={value}: .* sample with {name}=[01],"):
            require_whole_distribution(work / "made")


def test_a_plan_refuses_a_part_of_the_distribution_where_tokens_would_be_weighed(
    prompts: Path, policy: Path
) -> None:
    asked, model = adopt(str(prompts), Prompts), adopt(str(policy), Model)
    part = judge(judge(sample_rollouts(asked, model, CUT)))
    told = "says temperature=0.9, top_p=0.9, top_k=30, min_p=0.001: .* sample with temperature=1, "
    with pytest.raises(TemperError, match=f"^train_on_rollouts: the config of .* {told}top_p=1, "):
        train_on_rollouts(part, model)
    train_on_rollouts(part, model, RlConfig(method=OnlineDpo()))
    train_on_rollouts(judge(sample_rollouts(asked, model, CONFIG)), model)


@pytest.mark.parametrize(
    ("rows", "told"), [(2, "2 prompts .* have the row id 'q1'"), (0, "has no prompt to answer")]
)
def test_prompts_that_cannot_be_told_apart_and_no_prompts_are_refused(
    tmp_path: Path, policy: Path, rows: int, told: str
) -> None:
    same = [PromptRow("q1", ({"role": "user", "content": f"w{n}"},)) for n in range(rows)]
    write_rows(tmp_path / "same/prompts-00000.parquet", PROMPTS, map(to_record, same))
    with pytest.raises(ValueError, match=told):
        sampled(tmp_path / "work", tmp_path / "same", policy)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    rollout = Rollout(
        "q", 2, (5, 6), (7, 8, 2), (True, False, True), (-0.5, 0.0, -1.25), Finish.stop, "w",
        iteration=3, policy_logps=(-0.1, 0.0, -1 / 3), rewards={"exact": 1.0, "length": -0.5},
        verdict=Verdict.none, reason="it took too long",
    )  # fmt: skip
    plain = replace(rollout, k=1, policy_logps=None, rewards={}, verdict=None, reason=None)
    write_rollouts(tmp_path, [rollout, plain])
    assert list(read_rollouts(tmp_path)) == [rollout, plain]
    assert by_row([rollout, plain]) == {(3, "q"): [rollout, plain]}


def test_a_recording_that_somebody_has_edited_is_not_trained_on(
    recording: Path, tmp_path: Path
) -> None:
    drawn = list(read_rollouts(recording))
    edits = {
        "doubled": [*drawn, drawn[2]],
        "dropped": drawn[:-1],
        "swapped": [drawn[1], drawn[0], *drawn[2:]],
        "another prompt": [replace(drawn[0], prompt_ids=(9,)), *drawn[1:]],
        "another policy": [replace(drawn[0], weights="others"), *drawn[1:]],
    }
    for name, edited in edits.items():
        (tmp_path / name).mkdir()
        write_rollouts(tmp_path / name, edited)
        with pytest.raises(ValueError, match="use the recording as it was sampled"):
            Recorded(tmp_path / name, prompts=2)


def test_rewards_are_compared_as_they_are_and_one_too_large_to_square_is_refused(
    recording: Path,
) -> None:
    drawn = [replace(r, rewards={"x": 1 + 1e-12 * r.k}) for r in read_rollouts(recording)]
    assert experience_of(drawn, 6).rewards[0].tolist() == [1, 1 + 1e-12, 1 + 2e-12]
    with pytest.raises(ValueError, match=r"row 'q0', completion 0: its reward x is 1e\+200"):
        replace(drawn[0], rewards={"x": 1e200})


def test_a_reward_falls_by_up_to_1_over_the_last_tokens_before_the_limit(recording: Path) -> None:
    # What `get_soft_overlong_punishment(100, 20)` of TRL gives.
    theirs = {79: 0.0, 80: 0.0, 81: -0.05, 90: -0.5, 99: -0.95, 100: -1.0, 101: -1.0}
    assert {n: -overlong(n, 100, 20) for n in theirs} == theirs
    assert overlong(100, 100, None) == 0
    first = next(iter(read_rollouts(recording)))
    drawn = [
        replace(first, k=k, ids=(5,) * n, scored=(True,) * n, logps=(-1.0,) * n, rewards={"x": 2.0})
        for k, n in enumerate((1, 3, 6))
    ]
    assert experience_of(drawn, 6, 4).rewards.tolist() == [[2.0, 1.75, 1.0]]


def test_an_iteration_is_described_by_its_rewards_lengths_and_entropy(recording: Path) -> None:
    first = next(iter(read_rollouts(recording)))

    def made(k: int, length: int, finish: Finish, **rewards: float | None) -> Rollout:
        logps = (-0.5 * length,) * length
        ids, scored = (5,) * length, (True,) * length
        return replace(
            first, k=k, ids=ids, scored=scored, logps=logps, finish=finish, rewards=rewards
        )

    drawn = [
        made(0, 2, Finish.stop, right=1.0, short=0.5),
        made(1, 4, Finish.stop, right=0.0, short=None),
        made(2, 6, Finish.length, right=0.0, short=0.0),
    ]
    told = describe(drawn, experience_of(drawn, 6))
    assert told == pytest.approx(
        {
            "reward": 0.75,
            "reward_std": 1.5 / 2**0.5,
            "frac_reward_zero_std": 0.0,
            "rewards/right/mean": 1 / 3,
            "rewards/right/std": (1 / 3) ** 0.5,
            "rewards/short/mean": 0.25,
            "rewards/short/std": 0.5 / 2**0.5,
            "entropy": (2 * 1 + 4 * 2 + 6 * 3) / 12,
            "completions/mean_length": 4.0,
            "completions/min_length": 2,
            "completions/max_length": 6,
            "completions/mean_terminated_length": 3.0,
            "completions/clipped_ratio": 1 / 3,
            "completions/unscorable": 1,
        },
        rel=1e-12,
    )


def test_tokens_that_a_model_does_not_have_are_refused() -> None:
    require_ids([("q", (0, 63)), ("empty", ())], 64)
    with pytest.raises(ValueError, match=r"row 'q' has the token ids 1 to 64"):
        require_ids([("q", (1, 64))], 64)


# --- the same whatever happens --------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_record_what_one_does(
    tmp_path: Path, recording: Path, prompts: Path, policy: Path
) -> None:
    assert run_ranks(sampled, tmp_path / "two", prompts, policy) == [0, 0]
    assert folder_bytes(tmp_path / "two" / "made") == folder_bytes(recording)


class Counting:
    """An engine that counts what it is asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.weights = engine.weights
        self.asked: list[tuple[str, int]] = []

    def sample(self, requests: Any, weights: str) -> Iterator[Finished]:
        requests = list(requests)
        self.asked += [(request.row, request.k) for request in requests]
        yield from self.engine.sample(requests, weights)

    def update_weights(self, source: Any, weights: str) -> None:
        raise NotImplementedError


def test_a_run_that_was_told_to_leave_goes_on_with_what_is_missing(
    tmp_path: Path, policy: Path
) -> None:
    asked = [(f"q{n}", [n, n + 1]) for n in range(6)]
    requests: list[Request] = make_requests(asked, CONFIG, [2])
    model = load_model(policy)
    whole = record(SlotEngine(model, "w"), requests, Workplace(tmp_path, tmp_path / "one"))
    scratch, kept = tmp_path / "two", 0
    for _ in range(3):
        answers = iter([False, False, True])
        engine = Counting(SlotEngine(model, "w", slots=4))
        place = Workplace(tmp_path, scratch, stopping=lambda answers=answers: next(answers))
        with pytest.raises(Left, match="that are finished are kept"):
            record(engine, requests, place)
        assert len(engine.asked) == len(requests) - kept
        kept += 3
    engine = Counting(SlotEngine(model, "w", slots=3))
    assert [_rounded(r) for r in record(engine, requests, Workplace(tmp_path, scratch))] == [
        _rounded(r) for r in whole
    ]
    assert len(engine.asked) == len(requests) - kept


def draw_until_killed(policy: Path, scratch: Path) -> None:
    """Keeps each completion at once, and is killed after some of them."""
    recorder._SECONDS_A_PART = 0.0
    requests = make_requests([(f"q{n}", [n, n + 1]) for n in range(6)], CUT, [2])
    place = Workplace(scratch, scratch, on_progress=kill_after_seven)
    record(SlotEngine(load_model(policy), "w", slots=4), requests, place)


def kill_after_seven(done: int, total: int, metrics: Any) -> None:
    if done >= 7:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_bits(
    tmp_path: Path, policy: Path
) -> None:
    requests = make_requests([(f"q{n}", [n, n + 1]) for n in range(6)], CUT, [2])
    model = load_model(policy)
    whole = record(SlotEngine(model, "w"), requests, Workplace(tmp_path, tmp_path / "whole"))
    assert run_ranks(draw_until_killed, policy, tmp_path, count=1) == [-signal.SIGKILL]
    engine = Counting(SlotEngine(model, "w", slots=3))
    again = record(engine, requests, Workplace(tmp_path, tmp_path))
    assert len(engine.asked) == len(requests) - 7
    assert list(map(_rounded, again)) == list(map(_rounded, whole))


def test_what_other_weights_have_left_is_not_taken(tmp_path: Path, policy: Path) -> None:
    requests = make_requests([("q", [3, 4])], CONFIG, [2])
    model = load_model(policy)
    place = Workplace(tmp_path, tmp_path, stopping=lambda: True)
    with pytest.raises(Left):
        record(SlotEngine(model, "old"), requests, place)
    engine = Counting(SlotEngine(model, "new"))
    rollouts = record(engine, requests, Workplace(tmp_path, tmp_path))
    assert len(engine.asked) == len(requests)
    assert {r.weights for r in rollouts} == {"new"}


def test_a_damaged_file_of_finished_completions_costs_only_drawing_them_again(
    tmp_path: Path, policy: Path
) -> None:
    requests = make_requests([("q", [3, 4])], CONFIG, [2])
    model = load_model(policy)
    place = Workplace(tmp_path, tmp_path, stopping=lambda: True)
    with pytest.raises(Left):
        record(SlotEngine(model, "w"), requests, place)
    (part,) = (tmp_path / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:-100])
    engine = Counting(SlotEngine(model, "w"))
    assert len(record(engine, requests, Workplace(tmp_path, tmp_path))) == len(requests)
    assert len(engine.asked) == len(requests)


def _rounded(rollout: Rollout) -> Rollout:
    """With logps as a file has them."""
    import numpy as np

    return replace(rollout, logps=tuple(np.array(rollout.logps, np.float32).tolist()))


# --- verdicts -------------------------------------------------------------------------------------


def judged_by(
    work: Path, recording: Path, checker: Checker, config: JudgeConfig = JudgeConfig()
) -> tuple[list[Rollout], dict[str, Any]]:
    work.joinpath("made").mkdir(parents=True)
    out: Any = Folder(work / "made", work / "scratch")
    metrics = judge.function(out, Rollouts(recording, "", ""), checker, config)
    return list(read_rollouts(work / "made")), dict(metrics or {})


def test_another_checker_judges_a_recording_anew_and_nothing_is_sampled(
    tmp_path: Path, recording: Path
) -> None:
    drawn = list(read_rollouts(recording))
    said = texts(recording, (r.ids for r in drawn))
    some = JudgeConfig(most_without=1)
    odd, metrics = judged_by(tmp_path / "odd", recording, OddLength(), some)
    judged, asked = tmp_path / "odd" / "made", {f.name for f in recording.glob("[!r]*")}
    assert asked == {f.name for f in judged.glob("[!r]*")} >= {TOKENIZER, TEMPLATE, "engine.json"}
    for before, text, after in zip(drawn, said, odd, strict=True):
        words = len(text.split())
        expected = Verdict.none if not text else Verdict.right if words % 2 else Verdict.wrong
        assert after.verdict is expected
        assert after.rewards == {"odd_length": float(words % 2) if text else None}
        assert (after.ids, after.logps, after.finish) == (before.ids, before.logps, before.finish)
    assert metrics["no_verdict"] == sum(not text for text in said) > 0
    assert metrics["right"] + metrics["wrong"] + metrics["no_verdict"] == len(drawn)
    assert list(metrics["reasons"]) == ["ZeroDivisionError: integer division or modulo by zero"]
    assert metrics["right_share"]["value"] == pytest.approx(metrics["right"] / len(drawn))
    solved = {r.row for r in odd if r.verdict is Verdict.right}
    every = sum(r.row == odd[0].row for r in odd)
    assert metrics[f"pass_at_{every}"]["value"] == len(solved) / len({r.row for r in odd})

    again, metrics = judged_by(tmp_path / "exact", tmp_path / "odd" / "made", Exact())
    assert "notices" not in metrics
    assert all("exact" in rollout.rewards for rollout in again)
    assert [r.rewards.get("odd_length") for r in again] == [
        r.rewards.get("odd_length") for r in odd
    ]
    assert {r.verdict for r in again} <= {Verdict.right, Verdict.wrong}
    assert [r.is_rewarded for r in again] == [bool(text) for text in said]  # a sum of both
    assert texts(tmp_path / "exact" / "made", (r.ids for r in again)) == said
    twice, metrics = judged_by(tmp_path / "twice", tmp_path / "exact" / "made", Halves())
    assert {r.rewards["exact"] for r in twice} == {0.5}
    assert metrics["notices"][0].startswith("21 completions had a reward named exact already")


def test_a_checker_that_comes_to_too_few_verdicts_stops_the_run(
    tmp_path: Path, prompts: Path, policy: Path
) -> None:
    prompts_folder(tmp_path / "unanswered", answer=None)
    sampled(tmp_path / "work", tmp_path / "unanswered", policy)
    with pytest.raises(ValueError, match=r"row 'q0': the row has no answer; .* 7 of 7 rows"):
        judged_by(tmp_path / "judged", tmp_path / "work" / "made", Boxed())
