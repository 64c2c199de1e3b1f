"""Completions from an address: what is sent and kept, what is paid, and what becomes of them."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from byte_model import write_byte_model
from fresh_processes import start
from http_answers import Asked, answering, listening
from step_output import Folder

from pipeline import TemperError
from pipeline.dag.canonical import identity
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.data.rows.parquet import read_rows, write_rows
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import PROMPTS, to_record
from steps.generation.config import SamplingConfig
from steps.generation.remote.synthesis_config import SynthesisConfig
from steps.kinds import Completions, Conversations, ConversationTokens, Model, Prompts
from steps.sample_completions import sample_completions
from steps.select_answers import select_answers
from steps.synthesize import synthesize
from steps.tokenize_conversations import tokenize_conversations
from steps.train_sft import train_sft
from steps.training.config import TrainConfig

CONFIG = SynthesisConfig("m", temperature=1.0, max_tokens=9, num_completions=2, parallel=3, tries=1)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = (
        PromptRow(f"r{n}", ({"role": "user", "content": f"{n} + 1?"},), f"{n + 1}")
        for n in range(6)
    )
    write_rows(tmp_path / "prompts/prompts-00000.parquet", PROMPTS, map(to_record, rows))
    return tmp_path / "prompts"


def reply(text: str | None, finish: str = "stop", tokens: int = 4) -> Any:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": tokens}}


def made(prompts: Path, config: SynthesisConfig, work: Path) -> Any:
    of: Any = synthesize.function
    return of(Folder(work / "out", work / "scratch"), Prompts(prompts, "", ""), config)


def completions_in(work: Path) -> list[dict[str, Any]]:
    return read_json_lines(work / "out/completions.jsonl")


def until_killed(prompts: Path, config: SynthesisConfig, work: Path) -> None:
    made(prompts, config, work)


def test_a_run_that_is_killed_asks_for_the_rest_only(prompts: Path, tmp_path: Path) -> None:
    answered, lock, begun = list[Any](), threading.Lock(), threading.Event()

    def answer(asked: Asked, content: Any) -> None:
        with lock:
            answered.append((content["messages"][0]["content"], content["seed"]))
            number = len(answered)
        if number > 5 and not begun.is_set():
            begun.set()
            threading.Event().wait(60)  # it is killed in the meantime
        asked.say(reply(f"It is {content['seed']}."))

    with answering(answer) as address:
        config = replace(CONFIG, address=f"{address}/v1", seed=3)
        process = start(until_killed, prompts, config, tmp_path)
        assert begun.wait(60)
        lines = tmp_path / "scratch/replies.jsonl"
        while not lines.is_file() or lines.read_text().count("content") < 5:
            pass
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kept = lines.read_text().count("content")
        before = len(answered)
        metrics = made(prompts, config, tmp_path)
        again, twelve = len(answered) - before, 12
    assert again == twelve - kept
    assert before - kept <= CONFIG.parallel
    assert len(set(answered)) == twelve  # a seed of its own for each request
    assert metrics == {"prompts": 6, "completions": 12, "cut": 0, "prompt_tokens": 120,
                       "completion_tokens": 48}  # fmt: skip
    assert [record["row"] for record in completions_in(tmp_path)] == [f"r{n}" for n in range(6)]
    for record in completions_in(tmp_path):
        seeds = [
            seed for text, seed in dict.fromkeys(answered) if text == f"{record['row'][1]} + 1?"
        ]
        assert sorted(record["completions"]) == sorted(f"It is {seed}." for seed in seeds)


@pytest.mark.parametrize(
    ("limit", "more"),
    [
        ({"most_tokens": 150}, {"most_tokens": 1000}),
        ({"most_cost": 0.5, "prompt_price": 1e3, "completion_price": 1e4}, {"most_cost": 5.0}),
    ],
)
def test_a_budget_is_never_passed_and_a_larger_one_goes_on(
    limit: dict[str, Any], more: dict[str, Any], prompts: Path, tmp_path: Path
) -> None:
    paid = list[Any]()

    def answer(asked: Asked, content: Any) -> None:
        paid.append(content)
        asked.say(reply("2"))

    with answering(answer) as address:
        config = replace(CONFIG, address=address, **limit)
        assert identity(config, "c") == identity(replace(CONFIG, parallel=9), "c")
        with pytest.raises(TemperError, match=r"budget .*: \d of 12 completions are there, for"):
            made(prompts, config, tmp_path)
        assert 0 < len(paid) < 12
        assert config.allows(10 * len(paid), 4 * len(paid))
        metrics = made(prompts, replace(config, **more), tmp_path)
    assert len(paid) == 12
    assert metrics.get("cost", 0.6) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("bad", "told", "again"),
    [
        (lambda asked: asked.say({}, 400), "refuses, with status 400", 1),
        (lambda asked: asked.say({"choices": []}), "has no reply in it", 1),
        (lambda asked: asked.say(reply(None, "content_filter")), "ended by content_filter", 0),
        (lambda asked: asked.say(reply(None, "stop")), "ended by no text", 0),
    ],
)
def test_rows_without_a_completion_are_told_or_end_the_step(
    bad: Any, told: str, again: int, prompts: Path, tmp_path: Path
) -> None:
    asked_for = list[str]()

    def answer(asked: Asked, content: Any) -> None:
        asked_for.append(text := content["messages"][0]["content"])
        bad(asked) if text == "4 + 1?" else asked.say(reply("x", "length"))

    with answering(answer) as address:
        config = replace(CONFIG, address=address, num_completions=1, parallel=1, most_without=0.1)
        with pytest.raises(TemperError, match=f"1 of 6 .* row 'r4', because: .*{told}"):
            made(prompts, config, tmp_path)
        del asked_for[:]
        metrics = made(prompts, replace(config, most_without=0.2), tmp_path)
    assert asked_for.count("4 + 1?") == again
    assert (metrics["without"], metrics["cut"], len(completions_in(tmp_path))) == (1, 5, 5)
    assert told in metrics["notices"][0]


def test_the_key_is_sent_and_stored_nowhere(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "do-not-store")
    seen = set[str | None]()

    def answer(asked: Asked, content: Any) -> None:
        seen.add(asked.headers["Authorization"])
        asked.say(reply("x"))

    with answering(answer) as address:
        made(prompts, replace(CONFIG, address=address, key_variable="OWN_KEY"), tmp_path)
    assert seen == {"Bearer do-not-store"}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 2
    assert not any(b"do-not-store" in file.read_bytes() for file in files)


@pytest.mark.slow
def test_our_own_server_says_what_its_model_samples(prompts: Path, tmp_path: Path) -> None:
    from steps.serving.openai_app import app_of
    from steps.serving.replies import Speaker

    model = write_byte_model(tmp_path / "model")
    with listening(app_of(Speaker(model), "m")) as port:
        config = SynthesisConfig("m", max_tokens=9, address=f"http://127.0.0.1:{port}/v1")
        metrics = made(prompts, config, tmp_path)
    of: Any = sample_completions.function
    sampling = SamplingConfig(max_new_tokens=9)
    sampled = of(
        Folder(tmp_path / "own/out"), Prompts(prompts, "", ""), Model(model, "", ""), sampling
    )
    assert completions_in(tmp_path) == completions_in(tmp_path / "own")
    assert metrics["completion_tokens"] == sampled["tokens"]


# --- what is kept of them -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_prompt", "kept"), [(1, ["a/0", "b/2"]), (None, ["a/0", "a/3", "b/2"])]
)
def test_answers_are_kept_that_a_checker_accepts(
    per_prompt: int | None, kept: list[str], tmp_path: Path
) -> None:
    right = r"\boxed{2}"
    asked: dict[str, Any] = {"prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}
    records = [
        {"row": "a", **asked, "completions": [right, right, f"No, {right}", f"{right}\n", "3"],
         "finish": ["stop", "stop", "length", "stop", "stop"]},
        {"row": "b", **asked, "completions": ["", "\\boxed{3}", right], "finish": ["stop"] * 3},
    ]  # fmt: skip
    write_json_lines(tmp_path / "completions.jsonl", records)
    out, given = Folder(tmp_path / "out"), Completions(tmp_path, "", "")
    select: Any = select_answers.function
    metrics = select(out, given, per_prompt=per_prompt)
    rows = read_rows(out.path / "conversations-00000.parquet")
    assert [row["row"] for row in rows] == kept
    assert [m["content"] for m in rows[0]["messages"]] == ["1 + 1?", right]
    ledger = {e["row"]: e["reason"] for e in read_rows(out.path / "ledger.parquet")}
    assert (ledger["a/1"], ledger["a/2"], ledger["b/0"]) == ("duplicate", "cut", "empty response")
    assert ledger["a/4"] == ledger["b/1"] == "not among the best"
    assert metrics["demonstrations"] == len(kept)
    everything = select(Folder(tmp_path / "all"), given, None, per_prompt=None)
    assert everything["demonstrations"] == 5
    write_json_lines(
        tmp_path / "completions.jsonl", [{**records[1], "completions": ["", "3", "4"]}]
    )
    with pytest.raises(TemperError, match=r"none of 3 completions is accepted \(2 ended"):
        select(Folder(tmp_path / "none"), given)


@pytest.mark.slow
def test_a_student_is_trained_on_them(tmp_path: Path) -> None:
    model = Model(write_byte_model(tmp_path / "model"), "", "")
    prompt = [{"role": "user", "content": "1 + 1?"}]
    record = {"row": "a", "prompt": prompt, "completions": ["2"], "finish": ["stop"]}
    write_json_lines(tmp_path / "completions.jsonl", [record])
    kept, tokens, trained = (Folder(tmp_path / name) for name in ("kept", "tokens", "trained"))
    steps: Any = (select_answers.function, tokenize_conversations.function, train_sft.function)
    steps[0](kept, Completions(tmp_path, "", ""), None)
    steps[1](tokens, Conversations(kept.path, "", ""), model)
    steps[2](trained, ConversationTokens(tokens.path, "", ""), model, TrainConfig(batch_size=1))
    (row,) = read_rows(tokens.path / "tokens-00000.parquet")
    assert sum(row["mask"]) == 2  # the answer and its end
    (log,) = read_json_lines(trained.path / "metrics.jsonl")
    assert log["loss"] > 0
