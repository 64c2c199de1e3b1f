"""A language model as a judge: what it says, what is kept, and what happens where it fails."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_answers import Asked, answering

from pipeline.dag.canonical import identity, portable
from steps.checking.judges import Judges
from steps.checking.llm_judge import LlmJudge, verdict_of
from steps.checking.verdicts import Answered, Verdict

RIGHT, WRONG, NONE = Verdict.right, Verdict.wrong, Verdict.none
ASKED = Answered("It is 42.", "42", ({"role": "user", "content": "6 times 7?"},))


def reply(text: str, finish: str = "stop") -> Any:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("answer", "verdict", "reason"),
    [
        (reply("Yes.\nVERDICT: RIGHT"), RIGHT, "Yes."),
        (reply("No.\n**Verdict: wrong**\n"), WRONG, "No."),
        (reply("Who knows?\nVERDICT: UNSURE"), NONE, "the judge is unsure"),
        (reply("It says VERDICT: RIGHT\nbut I do not."), NONE, "last line is no verdict"),
        (reply("VERDICT: RIGHT or VERDICT: WRONG"), NONE, "last line is no verdict"),
        (reply("VERDICT: RIGHT", "length"), NONE, "was cut; raise max_tokens"),
        (reply(""), NONE, "last line is no verdict"),
        (reply("```\n```"), NONE, "last line is no verdict"),
        (reply("It adds up.\n```text\nFinal VERDICT: RIGHT\n```\n"), RIGHT, "Final VERDICT"),
        (reply("**Final verdict:** WRONG"), WRONG, "WRONG"),
        (reply("VERDICT: RIGHT\n```\n1 + 1\n```"), NONE, "last line is no verdict"),
        (reply("Not a VERDICT: RIGHT"), NONE, "last line is no verdict"),
        ({"choices": []}, NONE, "has no reply in it"),
        ({"choices": [{"message": {"content": None}}]}, NONE, "has no reply in it"),
        ("hello", NONE, "has no reply in it"),
    ],
)
def test_the_last_line_of_a_reply_is_the_verdict(
    answer: Any, verdict: Verdict, reason: str
) -> None:
    judgement = verdict_of(answer, LlmJudge.words)
    assert judgement.verdict is verdict
    assert reason in judgement.reason


def test_the_judge_is_asked_with_what_is_configured_and_each_place_is_filled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the key")
    seen = []

    def answer(asked: Asked, content: Any) -> None:
        seen.append((asked.path, asked.headers["Authorization"], content))
        asked.say(reply("VERDICT: WRONG"))

    with answering(answer) as address:
        judge = LlmJudge("a-judge", "{question}|{answer}|{text}", 0.5, 7, f"{address}/v1/")
        judgement = judge.check(replace(ASKED, text="{answer} {x}"))
    assert judgement.verdict is WRONG
    assert seen == [
        (
            "/v1/chat/completions",
            "Bearer the key",
            {
                "model": "a-judge",
                "messages": [{"role": "user", "content": "6 times 7?|42|{answer} {x}"}],
                "temperature": 0.5,
                "max_tokens": 7,
            },
        )
    ]


def test_the_judge_of_a_conversation_sees_the_calls_of_tools_with_their_replies() -> None:
    seen = []

    def answer(asked: Asked, content: Any) -> None:
        seen.append(content["messages"][0]["content"])
        asked.say(reply("VERDICT: RIGHT"))

    call = {"type": "function", "function": {"name": "area", "arguments": {"city": "Köln"}}}
    prompt = [
        {"role": "user", "content": "How large?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "405"},
    ]
    with answering(answer) as address:
        judge = LlmJudge("j", "{question}|{text}", address=address)
        judge.check(replace(ASKED, prompt=prompt))
    called = '{"name": "area", "arguments": {"city": "Köln"}}'
    assert seen == [f"user: How large?\n\nassistant: {called}\n\ntool: 405|{ASKED.text}"]


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (lambda asked: asked.say({}, 429), "answers with status 429"),
        (lambda asked: asked.say(b"<html>"), "no JSON"),
        (lambda asked: asked.say(b"{", missing=9), "cannot be asked"),
        (lambda asked: None, "cannot be asked (ConnectionError)"),
    ],
)
def test_what_passes_is_tried_again_and_what_stays_is_no_verdict(
    failing: Callable[[Asked], None], reason: str
) -> None:
    tries = []

    def answer(asked: Asked, content: Any) -> None:
        tries.append(asked)
        failing(asked) if len(tries) != 2 else asked.say(reply("VERDICT: RIGHT"))

    with answering(answer) as address:
        judge = LlmJudge("j", address=address, tries=2)
        assert judge.check(ASKED).verdict is RIGHT
        judgement = judge.check(ASKED)
    assert len(tries) == 4
    assert judgement.verdict is NONE
    assert reason in judgement.reason
    assert address not in judgement.reason


def test_a_refusal_and_a_redirection_are_not_tried_again() -> None:
    tries = []

    def answer(asked: Asked, content: Any) -> None:
        tries.append(asked)
        asked.say({}, 401 if len(tries) == 1 else 307)

    with answering(answer) as address:
        judge = LlmJudge("j", address=address)
        assert "refuses, with status 401" in judge.check(ASKED).reason
        assert "refuses, with status 307" in judge.check(ASKED).reason
    assert len(tries) == 2


def test_model_template_and_temperature_are_identity_and_the_key_is_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "do-not-store")
    judge = LlmJudge("one")
    elsewhere = replace(judge, address="https://x/v1", key_variable="K", timeout=1.0, tries=1)
    assert identity(elsewhere, "checker") == identity(judge, "checker")
    others = ({"model": "two"}, {"template": "{text}?"}, {"temperature": 1.0}, {"max_tokens": 5})
    for other in others:
        assert identity(replace(judge, **other), "checker") != identity(judge, "checker")
    assert "do-not-store" not in json.dumps(portable(judge, "checker"))


# --- verdicts that were paid for ------------------------------------------------------------------


def test_an_interrupted_judging_pays_for_what_is_missing_and_equal_answers_once(
    tmp_path: Path,
) -> None:
    asked_for: list[str] = []
    refused: set[str] = {"4"}

    def answer(asked: Asked, content: Any) -> None:
        text = content["messages"][0]["content"]
        asked_for.append(text)
        asked.say(
            {} if text in refused else reply("VERDICT: RIGHT"), 400 if text in refused else 200
        )

    texts = ["0", "1", "2", "1", "3", "4", "5", "6", "6", "7"]
    answers = [Answered(text) for text in texts]
    with answering(answer) as address:
        judge = LlmJudge("j", "{text}", address=address)
        told = pytest.raises(
            ValueError, match=r"1 of 10 .* status 400; .* asks for what is missing"
        )
        with Judges(judge, 1, 60, tmp_path / "kept", 0.05) as judges, told:
            judges.judge(answers)
        paid = set(asked_for) - refused
        with (tmp_path / "kept" / "verdicts.jsonl").open("a") as file:
            file.write('{"content": "half a li')  # a writer that was killed
        refused.clear()
        asked_for.clear()
        with Judges(judge, 1, 60, tmp_path / "kept", 0.05) as judges:
            assert [found.verdict for found in judges.judge(answers)] == [RIGHT] * len(texts)
        assert set(asked_for).isdisjoint(paid)
        assert len(asked_for) == len(set(asked_for))
        asked_for.clear()
        with Judges(judge, 1, 60, tmp_path / "kept", 0.05) as judges:
            judges.judge(answers)
        assert not asked_for
