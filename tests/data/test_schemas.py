"""Data sets as people publish them: three rows of each, written here in the columns of their cards.

Each loads as it is or with one setting, with the better answer as chosen, or is refused by naming
the setting.
"""

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline import TemperError
from steps.core_adapters.load import check_load
from steps.data.formats.chat import ChatFormat
from steps.data.formats.choice import FormatChoice, IgnoredKeys, choose_format, format_name
from steps.data.load.loading import Load, Reading, load_rows, part_of
from steps.data.load.shards import LONE, Reader, files_at, source_of
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow, PreferenceRow, PromptRow, TextRow, UnpairedRow
from steps.sources import Files, PreferenceData

Records = Sequence[dict[str, Any]]


def loaded(records: Records, kind: type = PreferenceRow, **choice: Any) -> list[Any]:
    """The rows of records, each a row, several, or the reason why it is none."""
    chosen = choose_format(FormatChoice(**choice), records, kind, "here")
    rows: list[Any] = []
    for number, record in enumerate(records, start=1):
        try:
            parsed = chosen.parse(record, str(number))
        except MalformedRow as problem:
            rows.append(problem.reason)
            continue
        rows += parsed if isinstance(parsed, list) else [parsed]
    return rows


def said(row: PreferenceRow) -> tuple[str, str, str]:
    """The last question, and the last word of either side."""
    texts = (side[-1]["content"] for side in (row.prompt, row.chosen, row.rejected))
    one, two, three = texts
    return one, two, three


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


ASKED = ("One?", "Two?", "Three?")
THREE = [(asked, "good", "bad") for asked in ASKED]


def each(record: Any) -> Records:
    return [record(asked) for asked in ASKED]


AS_THEY_ARE: Mapping[str, Records] = {
    "LLaMA-Factory, ShareGPT": each(
        lambda q: {
            "conversations": [{"from": "human", "value": q}],
            "chosen": {"from": "gpt", "value": "good"},
            "rejected": {"from": "gpt", "value": "bad"},
        }
    ),
    "LLaMA-Factory, Alpaca": each(
        lambda q: {"instruction": q, "input": "", "chosen": "good", "rejected": "bad"}
    ),
    "axolotl, chat_template.default": each(
        lambda q: {
            "messages": [user(q)],
            "chosen": assistant("good"),
            "rejected": assistant("bad"),
        }
    ),
    "OpenAI preference fine-tuning": each(
        lambda q: {
            "input": {"messages": [user(q)], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [assistant("good")],
            "non_preferred_output": [assistant("bad")],
        }
    ),
    "SHP": [
        {
            "history": q, "human_ref_A": "good" if a else "bad",
            "human_ref_B": "bad" if a else "good", "labels": int(a), "score_A": 9 if a else 2,
            "score_B": 2 if a else 9,
        }
        for q, a in zip(ASKED, (True, False, True), strict=True)
    ],
    "HelpSteer 3": [
        {
            "context": [user(q)], "response1": "good" if n < 0 else "bad",
            "response2": "bad" if n < 0 else "good", "overall_preference": n,
        }
        for q, n in zip(ASKED, (-3, 1, 2), strict=True)
    ],
    "HelpSteer 2, preferences": [
        {
            "prompt": q, "response_1": "good" if n < 0 else "bad",
            "response_2": "bad" if n < 0 else "good", "preference_strength": n,
        }
        for q, n in zip(ASKED, (-1, 3, 1), strict=True)
    ],
    "WebGPT": [
        {
            "question": {"dataset": "eli5", "id": "1", "full_text": q},
            "answer_0": "good" if s > 0 else "bad", "answer_1": "bad" if s > 0 else "good",
            "score_0": s, "score_1": -s,
        }
        for q, s in zip(ASKED, (0.5, -1.0, 1.0), strict=True)
    ],
    "Chatbot Arena": [
        {
            "conversation_a": [user(q), assistant("good" if w == "model_a" else "bad")],
            "conversation_b": [user(q), assistant("bad" if w == "model_a" else "good")],
            "winner": w,
        }
        for q, w in zip(ASKED, ("model_a", "model_b", "model_a"), strict=True)
    ],
    "distilabel, generations": each(
        lambda q: {
            "instruction": q,
            "generations": ["bad", "good", "unrated"],
            "ratings": [1.0, 4.0, None],
        }
    ),
    "text in parts": each(
        lambda q: {
            "prompt": [{"role": "user", "content": [{"type": "text", "text": q}]}],
            "chosen": [{"role": "assistant", "content": [{"type": "text", "text": "good"}]}],
            "rejected": [{"role": "assistant", "content": [{"type": "text", "text": "bad"}]}],
        }
    ),
    "full-hh-rlhf": each(
        lambda q: {
            "prompt": f"\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: {q}\n\nAssistant:",
            "response": " good", "chosen": " good", "rejected": " bad",
        }
    ),
    "ms-swift": each(
        lambda q: {"messages": [user("Hi"), assistant("Hello."), user(q), assistant("good")],
                   "rejected_response": "bad"}
    ),
    "Stack Exchange, ranked": each(
        lambda q: {
            "question": q,
            "answers": [{"text": "bad", "pm_score": 1}, {"text": "good", "pm_score": 5}],
        }
    ),
    "Gemini": each(
        lambda q: {
            "contents": [{"role": "user", "parts": [{"text": q}]}],
            "completions": [
                {"score": score, "completion": {"role": "model", "parts": [{"text": text}]}}
                for score, text in ((0.0, "bad"), (1.0, "good"))
            ],
        }
    ),
    "UltraInteract": each(
        lambda q: {
            "trajectory": [{"from": "user", "value": q}], "chosen": "good", "rejected": "bad",
        }
    ),
    "messages as JSON text": each(
        lambda q: {
            "chosen": json.dumps([user(q), assistant("good")]),
            "rejected": json.dumps([user(q), assistant("bad")]),
        }
    ),
    "summaries with feedback": each(
        lambda q: {
            "info": {"id": "1", "post": q, "title": "t"}, "choice": 1,
            "summaries": [{"text": "bad", "policy": "x"}, {"text": "good", "policy": "y"}],
        }
    ),
    "AlpacaFarm": each(
        lambda q: {
            "instruction": q, "input": "", "output_1": "bad", "output_2": "good", "preference": 2,
        }
    ),
    "a column for each verdict": [
        {
            "model_a": "x", "model_b": "y", "prompt": json.dumps(["Hi", q]),
            "response_a": json.dumps(["Hello.", "good" if a else "bad"]),
            "response_b": json.dumps(["Hello.", "bad" if a else "good"]),
            "winner_model_a": int(a), "winner_model_b": int(not a), "winner_tie": 0,
        }
        for q, a in zip(ASKED, (True, False, True), strict=True)
    ],
    "texts and rewards": each(
        lambda q: {"prompt": q, "responses": ["bad", "good"], "rewards": [0.5, 1.5]}
    ),
    "POVID": each(
        lambda q: {"conversations": [user(q), assistant("good")],
                   "rejected_conversations": [user(q), assistant("bad")]}
    ),
    "winner by name, both bad": [
        {
            "prompt": q, "response_a": "good" if a else "bad", "response_b": "bad" if a else "good",
            "model_a": "x" if a else "y", "model_b": "y" if a else "x", "winner": "x",
        }
        for q, a in zip(ASKED, (True, False, True), strict=True)
    ],
    "developer and function roles": each(
        lambda q: {
            "prompt": [
                {"role": "developer", "content": "Be brief."},
                user("Rain?"),
                {"role": "assistant", "content": "", "tool_calls": [{"name": "weather"}]},
                {"role": "function", "name": "weather", "content": "sun"},
                assistant("No."),
                user(q),
            ],
            "chosen": [assistant("good")],
            "rejected": [assistant("bad")],
        }
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_rows_load_as_they_are_with_the_better_side_chosen(name: str) -> None:
    rows = loaded(AS_THEY_ARE[name])

    assert [said(row) for row in rows] == THREE


TIES: Mapping[str, dict[str, Any]] = {
    "HelpSteer 3": {"overall_preference": 0},
    "WebGPT": {"score_0": 0.0, "score_1": 0.0},
    "Chatbot Arena": {"winner": "tie (bothbad)"},
    "a column for each verdict": {"winner_model_a": 0, "winner_model_b": 0, "winner_tie": 1},
    "winner by name, both bad": {"winner": "both_bad"},
}


@pytest.mark.parametrize("name", TIES)
def test_ties_are_counted_and_not_trained_on(name: str) -> None:
    *others, last = AS_THEY_ARE[name]

    assert loaded([*others, last | TIES[name]])[2] == "tie"


def judged(value: Any) -> dict[str, Any]:
    return {"prompt": "q", "left": "l", "right": "r", "verdict": value}


NAMES = {"chosen": "left", "rejected": "right", "better": "verdict"}


@pytest.mark.parametrize(
    ("value", "first", "chosen"),
    [
        ("A", None, "l"), ("b", None, "r"), ("response_a", None, "l"), ("model_b", None, "r"),
        (0, "0", "l"), (1, "0", "r"), (True, "1", "l"), ("1", "1", "l"), (2, "1", "r"),
        (-0.5, "negative", "l"), (3, "negative", "r"), (3, "positive", "l"),
        (-2 / 3, "negative", "l"), ("0.3333333333333333", "positive", "l"),
        ("-1e-05", "negative", "l"), ("-", "negative", "verdict not understood"),
        (float("nan"), "negative", "verdict not understood"),
        (float("nan"), "1", "verdict not understood"),
        (10**400, "positive", "verdict not understood"),
        ("Positive", "positive", "l"), ("positive", "negative", "r"), (True, "positive", "l"),
        ("left", "left", "l"), ("right", "left", "r"), ("Left", "left", "l"), ("RIGHT", None, "r"),
        (True, "true", "l"), (False, "True", "r"), ("True", "true", "l"), (1.0, "true", "l"),
        ("neither", "left", "tie"), ("", "left", "verdict not understood"),
        ("tie", None, "tie"), (0, "negative", "tie"), ("Tie (both bad)", "left", "tie"),
        (0, None, "verdict not understood"), (1, None, "verdict not understood"),
        ("maybe", None, "verdict not understood"), (None, "0", "verdict not understood"),
    ],
)  # fmt: skip
def test_a_column_says_which_side_is_better(value: Any, first: str | None, chosen: str) -> None:
    fields = NAMES | ({} if first is None else {"first": first})

    (row,) = loaded([judged(value)], name="preference", fields=fields)

    assert row == chosen if isinstance(row, str) else row.chosen[0]["content"] == chosen


def test_of_three_verdicts_two_must_be_named(tmp_path: Path) -> None:
    """PandaLM writes 0 for a tie, elsewhere it means the second side."""
    rows = [judged(value) for value in (1, 2, 0)]
    assert loaded(rows, name="preference", fields=NAMES | {"first": "1", "second": "2"})[2] == "tie"

    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps(row | {"prompt": str(n)}) + "\n" for n, row in enumerate(rows))
    )
    part = part_of(
        source_of(str(path)), FormatChoice("preference", NAMES | {"first": "1"}), PreferenceRow
    )
    load = Load(PreferenceRow, Reading("rows", (part,)))
    done = load_rows(load, tmp_path / "out", tmp_path / "scratch", lambda *_: None)
    with pytest.raises(TemperError, match=r"the values 2, 0: .*data\.fields\.second"):
        check_load(load, done, 0.5)


FOUR = {
    "prompt": "q",
    "completions": [
        {"text": "worst", "score": 1},
        {"text": "best", "score": 4},
        {"text": "good", "score": 3},
        {"text": "also good", "score": 3},
    ],
}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ("best_vs_worst", [("best", "worst")]),
        ("adjacent", [("also good", "worst"), ("best", "good")]),
        (
            "all",
            [
                ("best", "worst"), ("good", "worst"), ("also good", "worst"), ("best", "good"),
                ("best", "also good"),
            ],
        ),
    ],
)  # fmt: skip
def test_scored_completions_become_pairs_with_their_scores(pairs: str, expected: Any) -> None:
    rows = loaded([FOUR], pairs=pairs)

    assert [(r.chosen[0]["content"], r.rejected[0]["content"]) for r in rows] == expected
    assert [r.row for r in rows] == [f"1#{n}" for n in range(1, len(rows) + 1)]
    assert all(r.score_chosen > r.score_rejected for r in rows)
    assert rows[0].score_chosen - rows[0].score_rejected == max(
        r.score_chosen - r.score_rejected for r in rows
    )


def test_completions_that_are_all_equally_good_are_a_tie() -> None:
    equal = [{"text": text, "score": 1} for text in "ab"]
    assert loaded([FOUR | {"completions": equal}, FOUR])[0] == "tie"


@pytest.mark.parametrize(
    ("spelled", "label"),
    [
        (1, True), (0, False), (1.0, True), ("True", True), ("false", False), ("0", False),
        ("correct", True), ("Unsafe", False), ("pos", True), ("harmful", False),
    ],
)  # fmt: skip
def test_a_verdict_on_one_completion_may_be_a_number_or_a_word(spelled: Any, label: bool) -> None:
    record = {"prompt": "q", "completion": "a", "label": spelled}
    (row,) = loaded([record], UnpairedRow)
    assert row.label is label


CALL = {"name": "weather", "arguments": {"city": "Rome"}}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "Alpaca": {"instruction": "Translate.", "input": "Haus", "output": "house"},
    "OpenOrca": {"system_prompt": "Be brief.", "question": "q", "response": "a"},
    "Gemini": {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "q"}]}, {"role": "model", "parts": [{"text": "a"}]},
        ],
    },
    "Cohere": {"messages": [{"role": "User", "content": "q"}, {"role": "Chatbot", "content": "a"}]},
    "function_call": {
        "messages": [
            user("q"), {"role": "assistant", "content": None, "function_call": CALL},
            {"role": "function", "content": "sun"}, assistant("a"),
        ]
    },
    "call with its arguments as text": {
        "messages": [
            user("q"), {"role": "assistant", "content": None, "tool_calls": [
                {"function": CALL | {"arguments": json.dumps(CALL["arguments"])}}
            ]}, {"role": "tool", "content": "sun"}, assistant("a"),
        ]
    },
    "LLaMA-Factory tools": {
        "conversations": [
            {"from": "human", "value": "q"}, {"from": "function_call", "value": json.dumps(CALL)},
            {"from": "observation", "value": "sun"}, {"from": "gpt", "value": "a"},
        ]
    },
    "Llama 3 tools": {"messages": [user("q"), assistant("c"), {"role": "ipython", "content": "s"},
                                   assistant("a")]},
}  # fmt: skip
CONVERSATIONS |= {
    "LIMA": {"conversations": ["q", "a"]},
    "UltraChat": {"id": "1", "data": ["Hi", "Hello.", "q", "a"]},
    "Dolly": {"instruction": "q", "context": "Given.", "response": "a", "category": "qa"},
    "Aya": {"inputs": "q", "targets": "a", "language": "en"},
    "LIMO": {"question": "q", "solution": "a", "answer": "42"},
    "CodeFeedback": {"query": "q", "answer": "a", "lang": "python"},
    "Nemotron": {"input": [user("q")], "output": "a", "system_prompt": "Be brief."},
    "XTuner": {"conversation": [{"system": "Be brief.", "input": "q", "output": "a"}]},
    "history": {"instruction": "q", "output": "a", "history": [["Hi", "Hello."]]},
    "system_message": {"system_message": "Be brief.", "conversations": [user("q"), assistant("a")]},
}
ROLES = {
    **dict.fromkeys(("LIMA", "Dolly", "Aya", "LIMO", "CodeFeedback"), "user assistant"),
    **dict.fromkeys(("UltraChat", "history"), "user assistant user assistant"),
    **dict.fromkeys(("Nemotron", "XTuner", "system_message"), "system user assistant"),
    "Alpaca": "user assistant", "OpenOrca": "system user assistant",
    "Gemini": "system user assistant", "Cohere": "user assistant",
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_load_as_they_are(name: str) -> None:
    (row,) = loaded([CONVERSATIONS[name]], ConversationRow)

    roles = " ".join(message["role"] for message in row.messages)
    assert roles == ROLES.get(name, "user assistant tool assistant")
    calls = [call["function"] for message in row.messages for call in message.get("tool_calls", ())]
    given = CALL | {"arguments": json.dumps(CALL["arguments"])} if "as text" in name else CALL
    assert calls == ([given] if "call" in name or "LLaMA" in name else [])
    more = {"Alpaca": "Translate.\nHaus", "Dolly": "q\nGiven."}
    assert row.messages[0]["content"] == more.get(name, row.messages[0]["content"])
    assert row.messages[-1]["content"] in ("a", "house", "")


REFUSED: Mapping[str, tuple[type, dict[str, Any], dict[str, Any], str]] = {
    "s1K": (
        ConversationRow,
        {"question": "q", "solution": "s", "attempt": "a", "thinking_trajectories": ["t"]},
        {"prompt": "question", "completion": "attempt", "reasoning": "thinking_trajectories"},
        "completion",
    ),
    "Guanaco": (
        ConversationRow,
        {"text": "### Human: Hi### Assistant: Hello.### Human: q### Assistant: a"},
        {"messages": "text"},
        "chat",
    ),
    "TL;DR": (
        ConversationRow,
        {"prompt": "q", "label": "a"},
        {"completion": "label"},
        "completion",
    ),
    "ratings as text": (
        UnpairedRow,
        {"prompt": "q", "response": "a", "rating": "4"},
        {"completion": "response", "label": "rating", "good": "3"},
        "unpaired",
    ),
    "medical o1": (
        ConversationRow,
        {"Question": "q", "Complex_CoT": "t", "Response": "a"},
        {"prompt": "Question", "completion": "Response", "reasoning": "Complex_CoT"},
        "completion",
    ),
    "JudgeLM": (
        PreferenceRow,
        {"question_body": "q", "answer1_body": "bad", "answer2_body": "good", "score": [2, 8]},
        {"prompt": "question_body", "chosen": "answer1_body", "rejected": "answer2_body",
         "better": "scores", "score_chosen": "score.0", "score_rejected": "score.1"},
        "preference",
    ),
    "HelpSteer 2": (
        UnpairedRow,
        {"prompt": "q", "response": "a", "helpfulness": 3, "coherence": 1},
        {"completion": "response", "label": "helpfulness", "good": "3"},
        "unpaired",
    ),
    "BeaverTails": (
        UnpairedRow,
        {"prompt": "q", "response": "a", "is_safe": True},
        {"completion": "response", "label": "is_safe"},
        "unpaired",
    ),
    "first the better": (
        PreferenceRow,
        {"instruction": "q", "output": ["good", "bad"]},
        {"prompt": "instruction", "chosen": "output.0", "rejected": "output.1"},
        "preference",
    ),
    "safer": (
        PreferenceRow,
        {"prompt": "q", "response_0": "good", "response_1": "bad", "safer_response_id": 0},
        {"chosen": "response_0", "rejected": "response_1", "better": "safer_response_id",
         "first": "0"},
        "preference",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_clear_is_refused_with_the_settings_that_load_it(name: str) -> None:
    kind, record, fields, format_ = REFUSED[name]
    with pytest.raises(ValueError, match=r"cannot tell|one response") as refused:
        loaded([record], kind)
    assert f"data.format={format_}" in str(refused.value)
    assert all(f"{k}: {v}" in str(refused.value) for k, v in fields.items() if k not in GIVEN)

    (row,) = loaded([record], kind, name=format_, fields=fields)

    assert isinstance(row, kind), row
    if isinstance(row, ConversationRow):
        assert row.messages[-1]["content"] == "a"
        assert row.messages[-1].get("reasoning_content") == ("t" if "reasoning" in fields else None)
    if isinstance(row, UnpairedRow):
        assert row.label
    if isinstance(row, PreferenceRow):
        assert said(row) == ("q", "good", "bad")


@pytest.mark.parametrize(
    "said",
    [
        'USER: q\nASSISTANT: write "USER: hi" first',
        "USER: q\nASSISTANT: a\nASSISTANT: b",
        "USER: q\nASSISTANT: ```\nUSER: x\nASSISTANT: y\n```",
        "USER: q ASSISTANT: such as USER: x ASSISTANT: y",
        "Human: q\n\nAssistant: a\nHuman: r\nAssistant: b",
        "### Human: q### Assistant: such as\n### Human: x\n### Assistant: y",
        "SYSTEM: s\nUSER: q\nASSISTANT: a",
        "ASSISTANT: a",
    ],
)
def test_a_dialogue_whose_marks_may_be_quoted_is_refused(said: str) -> None:
    chosen = choose_format(FormatChoice("chat", {"messages": "said"}), [], ConversationRow, "here")
    with pytest.raises(MalformedRow, match=r"data\.fields"):
        chosen.parse({"said": said}, "1")


def test_a_context_that_cannot_be_added_to_the_question_is_no_silent_loss() -> None:
    record = {"question": [user("q")], "context": "Given.", "answer": "a"}
    assert loaded([record], ConversationRow) == ["content not a string"]
    before = {"question": "q", "context": [user("Hi"), assistant("Hello.")], "answer": "a"}
    assert len(loaded([before], ConversationRow)[0].messages) == 4


GIVEN = ("good", "first")
"""Settings whose value only a person knows."""

PROMPTS: Mapping[str, dict[str, Any]] = {
    "GSM8K, with a line break at the end": {"question": "q", "answer": "So:\n#### 42 \r\n\n"},
    "GSM8K, only the answer": {"question": "q", "answer": "#### 42"},
    "DeepScaleR": {"problem": "q", "answer": "42", "solution": "Six times seven."},
    "DAPO": {"prompt": [user("q")], "reward_model": {"ground_truth": "42"}},
    "DeepMath": {"question": "q", "final_answer": "42"},
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_load_with_their_answers(name: str) -> None:
    (row,) = loaded([PROMPTS[name]], PromptRow)
    assert (row.prompt, row.answer) == ((user("q"),), "42")


@pytest.mark.parametrize("answer", ["", "  \n", None, [], [""]])
def test_a_blank_answer_is_none(answer: object) -> None:
    """Otherwise an empty box would be right."""
    (row,) = loaded([{"prompt": "q", "answer": answer}], PromptRow, name="prompt")
    assert row.answer is None


@pytest.mark.parametrize("answer", ["####", "Six times seven.\n####\n", r"So it is $\boxed{42"])
def test_a_solution_without_its_end_is_refused(answer: str) -> None:
    assert loaded([{"question": "q", "answer": answer}], PromptRow) == ["answer without its end"]


@pytest.mark.parametrize(
    ("key", "no", "yes"),
    [("weight", 0, 1), ("weight", 0.0, 1.0), ("train", False, True), ("loss", False, None)],
)
def test_answers_say_whether_they_are_trained_on(key: str, no: object, yes: object) -> None:
    asked, bad, again, good = user("q"), assistant("bad"), user("Sure?"), assistant("good")
    turns = [{**asked, key: no}, {**bad, key: no}, {**again, key: no}, {**good, key: yes}]
    for spelled in (turns, json.dumps(turns)):
        (row,) = loaded([{"messages": spelled}], ConversationRow, system="Be kind.")
        assert [m.get("trained") for m in row.messages] == [None, None, False, None, True]
    assert not IgnoredKeys(ChatFormat()).of({"messages": turns})
    missing = [{**asked, key: float("nan")}, *turns[1:]]
    assert not IgnoredKeys(ChatFormat()).of({"messages": missing})
    (plain,) = loaded([{"messages": [{**m, key: None} for m in turns]}], ConversationRow)
    assert plain.messages == (asked, bad, again, good)


def test_a_key_of_ones_own_says_which_answers_are_trained_on() -> None:
    turns = [
        {"from": "human", "value": "q", "learn": 1},
        {"from": "gpt", "value": "a", "learn": 0, "weight": 1},
        {"from": "human", "value": "b"},
        {"from": "gpt", "value": "c"},
    ]
    named = {"messages": "conversations", "trained": "learn"}
    (row,) = loaded([{"conversations": turns}], ConversationRow, name="chat", fields=named)
    assert [m.get("trained") for m in row.messages] == [None, False, None, True]
    unread = IgnoredKeys(ChatFormat(**named)).of({"conversations": turns})
    asked = "conversations[].learn of others than the assistant"
    assert unread == {asked, "conversations[].weight"}


def test_masks_beside_the_messages_are_told_unless_they_say_what_holds() -> None:
    turns = [user("q"), assistant("a")]

    def unread(**columns: Any) -> set[str]:
        return IgnoredKeys(ChatFormat()).of({"messages": turns, **columns})

    assert unread(masks=[0, 1]) == {"masks"}
    assert unread(loss_mask=[0, 1]) == {"loss_mask"}
    assert unread(mask="Assistant") == {"mask"}
    assert not unread(mask="User")


def test_what_does_not_say_whether_an_answer_is_trained_on_refuses_the_row() -> None:
    half = [user("q"), {**assistant("a"), "weight": 0.5}]
    both = [user("q"), {**assistant("a"), "weight": 1, "train": False}]
    with pytest.raises(MalformedRow, match=r"messages\[1\].weight is float 0.5, expected 1 or 0"):
        ChatFormat().parse({"messages": half}, "1")
    with pytest.raises(MalformedRow, match="train and weight, which contradict each other"):
        ChatFormat().parse({"messages": both}, "1")
    assert ChatFormat(trained="learn").parse({"messages": half}, "1").messages == (
        user("q"),
        assistant("a"),
    )


@pytest.mark.parametrize("name", ["messages", "completion"])
def test_a_conversation_with_a_verdict_is_judged_by_its_last_turn(name: str) -> None:
    said = [user("Hi"), assistant("Hello."), user("q"), assistant("a")]
    for conversation in (said, said[2:]):
        (row,) = loaded([{name: conversation, "label": 0}], UnpairedRow)
        assert row.prompt == tuple(conversation[:-1])
        assert row.completion == (assistant("a"),)


@pytest.mark.parametrize(
    "rendered",
    [
        "<|im_start|>user\nq<|im_end|>\n", "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜>",
        "<|start|>user<|message|>q<|end|>", "<|header_start|>user<|header_end|>\n\nq<|eot|>",
    ],
)  # fmt: skip
def test_text_that_a_template_wrote_already_is_refused(rendered: str) -> None:
    record = {"prompt": rendered, "chosen": "a", "rejected": "b"}
    assert loaded([record]) == ["dialogue in one string"]


def test_a_prompt_that_both_texts_begin_with_is_found_where_it_is_asked_for() -> None:
    records = [
        {"chosen": f"{q} The sky is blue.", "rejected": f"{q} The sky is bleak."} for q in ASKED
    ]
    with pytest.raises(ValueError, match="implicit_prompt"):
        loaded(records)
    rows = loaded(records, name="implicit_prompt")
    assert [said(row) for row in rows] == [(f"{q} The sky is", "blue.", "bleak.") for q in ASKED]
    assert loaded([{"chosen": "a", "rejected": "b"}], name="implicit_prompt") == ["no prompt"]


TWICE = {"messages": [user("One."), user("Two."), assistant("a"), assistant("b")]}
HELLO = {"messages": [assistant("Hello."), user("One?"), assistant("a")]}


def test_turns_out_of_order_are_refused_naming_the_setting_or_merged_or_taken() -> None:
    assert loaded([TWICE, HELLO], ConversationRow) == ["wrong role order"] * 2
    chosen = choose_format(FormatChoice(), [TWICE], ConversationRow, "here")
    with pytest.raises(MalformedRow, match=r"data\.turns=merged"):
        chosen.parse(TWICE, "1")
    with pytest.raises(MalformedRow, match=r"data\.turns=any"):
        chosen.parse(HELLO, "1")

    calls = {**assistant(""), "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    apart = {"messages": [user("q"), assistant("Let me see."), calls]}
    with pytest.raises(MalformedRow, match=r"data\.turns=any takes them"):
        ChatFormat(turns="merged").parse(apart, "1")
    (merged, _) = loaded([TWICE, HELLO], ConversationRow, turns="merged")
    assert [m["content"] for m in merged.messages] == ["One.\n\nTwo.", "a\n\nb"]
    said = {"messages": [user("q"), *({**assistant(a), "weight": 1} for a in "ab")]}
    (merged,) = loaded([said], ConversationRow, turns="merged")
    assert merged.messages[1:] == ({**assistant("a\n\nb"), "trained": True},)
    said["messages"][1]["weight"] = 0
    with pytest.raises(MalformedRow, match=r"data\.turns=any takes them"):
        ChatFormat(turns="merged").parse(said, "1")
    taken = loaded([TWICE, HELLO], ConversationRow, turns="any")
    assert [len(row.messages) for row in taken] == [4, 3]


def test_columns_that_seem_to_matter_and_are_not_read_are_named() -> None:
    record = {"prompt": "q", "chosen": "good", "rejected": "bad", "image": "x.png", "model": "m"}
    chosen = choose_format(FormatChoice(), [record], PreferenceRow, "here")

    assert IgnoredKeys(chosen).of(record) == {"image"}
    assert IgnoredKeys(chosen).of(record | {"image_path": "x", "imagine": "y"}) == {
        "image",
        "image_path",
    }
    asked = {"question": "q", "choices": ["x", "y"], "canonical_solution": "x"}
    prompts = choose_format(FormatChoice(), [asked], PromptRow, "here")
    assert IgnoredKeys(prompts).of(asked) == {"choices", "canonical_solution"}
    assert IgnoredKeys(prompts).of(asked | {"answer": "x"}) == {"choices"}
    judged_by = {"test_list": ["x"], "instruction_id_list": ["y"], "latest": "z"}
    assert IgnoredKeys(prompts).of({"question": "q", **judged_by}) == set(judged_by) - {"latest"}
    judged = AS_THEY_ARE["SHP"][0]
    known = choose_format(FormatChoice(), [judged], PreferenceRow, "here")
    assert not IgnoredKeys(known).of(judged), format_name(known)


def test_images_in_messages_are_refused_and_not_left_out() -> None:
    content = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    record = {"messages": [{"role": "user", "content": content}, assistant("a")]}
    assert loaded([record], ConversationRow) == ["content not a string"]


# --- files and folders ---------------------------------------------------------------------------


def read(path: Path) -> list[Any]:
    reader = Reader(source_of(str(path)))
    rows = []
    while (found := reader.next()) is not None:
        rows.append(found[1][1])
    return rows


@pytest.mark.parametrize(("name", "separator"), [("rows.csv", ","), ("rows.TSV", "\t")])
def test_cells_are_texts_numbers_and_messages(tmp_path: Path, name: str, separator: str) -> None:
    path = tmp_path / name
    messages = json.dumps([user('say "é"\nplease'), assistant("a, b\tc")])
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(["chosen", "rejected", "score_chosen", "score_rejected"])
        other = json.dumps([user('say "é"\nplease'), assistant("d")])
        writer.writerows([[messages, other, "1.5", ""]] * 3)

    rows = loaded(read(path))

    assert [row.chosen[0]["content"] for row in rows] == ["a, b\tc"] * 3
    assert [(row.score_chosen, row.score_rejected) for row in rows] == [(1.5, None)] * 3


def test_an_answer_that_is_json_is_the_text_of_its_cell(tmp_path: Path) -> None:
    """So are texts; only messages, and what a format reads as JSON, are taken out of a cell."""
    answers = ['["Paris"]', '{"a": 1,  "b": [2]}', "[1, 2]", "[]", "{}"]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["prompt", "completion", "text", "tools"])
        tools = json.dumps([{"name": "look"}])
        writer.writerows([f"q{n}", said, said, tools] for n, said in enumerate(answers))

    rows = loaded(read(path), ConversationRow)

    assert [row.messages[-1] for row in rows] == [assistant(said) for said in answers]
    assert [row.tools for row in rows] == [({"name": "look"},)] * len(answers)
    assert [row.text for row in loaded(read(path), TextRow)] == answers
    pairs = [{"prompt": "q", "chosen": row["completion"], "rejected": "no"} for row in read(path)]
    assert [row.chosen[0]["content"] for row in loaded(pairs)] == answers


def test_fields_within_objects_are_named_with_a_dot_also_for_texts_and_the_template() -> None:
    (text,) = loaded([{"of": {"text": "t"}}], TextRow, name="text", fields={"text": "of.text"})
    assert text.text == "t"
    record = {"prompt": "q", "chosen": "a", "rejected": "b", "of": {"given": {"thinking": False}}}
    fields = {"template_kwargs": "of.given"}
    (pair,) = loaded([record], name="preference", fields=fields)
    assert pair.template_kwargs == {"thinking": False}


def test_a_table_with_a_cell_too_many_or_bad_bytes_costs_those_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"prompt,completion\nq,a\nq,a,b\nq,\xff\n\nq,b")

    found = read(path)

    assert found[0] == {"prompt": "q", "completion": "a"}
    assert [row.reason for row in found[1:3]] == ["broken table", "not valid UTF-8"]
    assert found[3] == {"prompt": "q", "completion": "b"}


def test_a_cell_over_the_limit_costs_its_row_and_not_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steps.data.readers.cells.MAX_ROW_BYTES", 100)
    monkeypatch.setattr("steps.data.readers.cells._MAX_CELL", 400)
    path = tmp_path / "rows.csv"
    content = f'text\na\n"{"long " * 50}"\nb\n"not closed\n'
    path.write_text(content + "a\n" * 300)
    found = [getattr(row, "reason", row) for row in read(path)]
    assert found == [{"text": "a"}, "row too large", {"text": "b"}, "file cut off"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", b'prompt,completion\nq,"a\nq,b\n'),
        ("rows.csv", b'prompt,completion\n"say \\"a\\" now",b\n'),
        ("rows.csv", b"prompt,prompt\nq,a\n"),
        ("rows.txt", "a\nb\n".encode("utf-16")),
    ],
)
def test_a_file_whose_rows_cannot_be_told_apart_is_an_error(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert [row.reason for row in read(tmp_path / name)] == ["file cut off"]


def write(path: Path, text: str = "a") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"text": text}) + "\n")


SNAPSHOT = ("data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl",
            "data/test-00000-of-00001.jsonl", "README.md")  # fmt: skip


def test_a_snapshot_of_the_hub_is_split_as_its_files_say(tmp_path: Path) -> None:
    for name in SNAPSHOT:
        write(tmp_path / name)

    data = PreferenceData(path=str(tmp_path))
    train, test = data.train_source(), data.test_source()

    assert isinstance(train, Files)
    assert isinstance(test, Files)
    assert train.names == ("data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl")
    assert test.names == ("data/test-00000-of-00001.jsonl",)
    with pytest.raises(ValueError, match="several splits"):
        files_at(str(tmp_path))


def test_several_data_sets_in_a_folder_are_not_read_as_one(tmp_path: Path) -> None:
    """As `main` and `socratic` of GSM8K, which have the same questions."""
    for name in ("main", "socratic"):
        write(tmp_path / name / "train-0.jsonl")
        write(tmp_path / name / "test-0.jsonl")
    write(tmp_path / "parts/train/1/a.jsonl")
    write(tmp_path / "parts/train/2/a.jsonl")
    write(tmp_path / "parts/test/a.jsonl")

    for ask in (files_at, lambda url: PreferenceData(path=url).train_source()):
        with pytest.raises(Exception, match=r"the folders main, parts, socratic: .*/socratic, or"):
            ask(str(tmp_path))
    for name, files in (("main", 1), ("parts", 2)):
        train = PreferenceData(path=str(tmp_path / name)).train_source()
        assert isinstance(train, Files)
        assert len(train.names) == files


def test_a_folder_that_lacks_a_part_of_a_file_or_has_two_copies_is_refused(tmp_path: Path) -> None:
    """As of a download that broke off: half of the rows would be missing without a word."""
    for name in ("a-00000-of-00002", "b_1_of_2", "b_2_of_2", "1-of-1"):
        write(tmp_path / f"{name}.jsonl")
    with pytest.raises(ValueError, match=r"holds 1 of the 2 parts of a-\*\.jsonl; get the others"):
        files_at(str(tmp_path))
    assert len(files_at(str(tmp_path / "a-*"))) == 1
    write(tmp_path / "a-00001-of-00002.jsonl")
    assert len(files_at(str(tmp_path))) == 5
    write(tmp_path / "a-00000-of-00001.jsonl")
    with pytest.raises(ValueError, match=r"holds a-\*\.jsonl in 1 and in 2 parts"):
        files_at(str(tmp_path))


def test_several_splits_for_training_must_be_named(tmp_path: Path) -> None:
    for split in ("train_prefs", "train_sft", "test_prefs", "test_sft"):
        write(tmp_path / f"data/{split}-00000-of-00001.jsonl", split)

    data = PreferenceData(path=str(tmp_path), train_split="train_sft", test_split="test_sft")

    train = data.train_source()
    assert isinstance(train, Files)
    assert train.names == ("data/train_sft-00000-of-00001.jsonl",)
    with pytest.raises(Exception, match="train_prefs, train_sft"):
        PreferenceData(path=str(tmp_path), train_split="train_gen").train_source()


@pytest.mark.parametrize("split", ["test", "evaluation", "held_out", "heldout", "hold-out"])
def test_a_split_may_follow_a_name(tmp_path: Path, split: str) -> None:
    for name in ("my_train.jsonl", f"my_{split}.jsonl", "train_more.jsonl"):
        write(tmp_path / name)
    data = PreferenceData(path=str(tmp_path), train_split="train_more")
    train, test = data.train_source(), data.test_source()
    assert isinstance(train, Files)
    assert isinstance(test, Files)
    assert (train.names, test.names) == (("train_more.jsonl",), (f"my_{split}.jsonl",))


def test_a_folder_behind_a_link_is_named_and_not_left_out(tmp_path: Path) -> None:
    write(tmp_path / "here/a.jsonl")
    write(tmp_path / "elsewhere/b.jsonl")
    (tmp_path / "here/linked").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ValueError, match="link to a folder: linked"):
        files_at(str(tmp_path / "here"))


def test_a_link_to_nothing_is_named_and_not_left_out(tmp_path: Path) -> None:
    """As of a part of a dataset that was not downloaded."""
    write(tmp_path / "part-1.jsonl")
    (tmp_path / "part-2.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "_hidden.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="a link to nothing: part-2"):
        files_at(str(tmp_path / "*.jsonl"))
    (tmp_path / "gone").write_text("{}")
    assert len(files_at(str(tmp_path / "*.jsonl"))) == 2


def test_what_datasets_saves_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"text": "a"}, {"text": "b"}])
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "two"))

    assert read(tmp_path / "one") == [{"text": "a"}, {"text": "b"}]
    assert [shard.name for shard in source_of(str(tmp_path / "one")).shards] == [LONE]
    saved = datasets.load_from_disk(str(tmp_path / "one"))
    saved.map(lambda row: {"text": row["text"] * 2}).shuffle(seed=1)
    assert list((tmp_path / "one").glob("cache-*.arrow"))
    shutil.copy(tmp_path / "one/data-00000-of-00001.arrow", tmp_path / "one/data-00000-of-2.arrow")
    assert read(tmp_path / "one") == [{"text": "a"}, {"text": "b"}], "no rows again"
    assert read(tmp_path / "one/*-of-00001.arrow") == [{"text": "a"}, {"text": "b"}]
    train = PreferenceData(path=str(tmp_path / "two")).train_source()
    assert isinstance(train, Files)
    assert all(n.startswith("train/") for n in train.names)
    with pytest.raises(ValueError, match=r"as in .*two/train/\*, or"):
        files_at(str(tmp_path / "two"))
    assert read(tmp_path / "two/train/*") == [{"text": "a"}, {"text": "b"}]
    (tmp_path / "one/data-00000-of-00001.arrow").unlink()
    with pytest.raises(ValueError, match=r"one lacks data-00000-of-00001.arrow, which its state"):
        files_at(str(tmp_path / "one"))


def test_an_object_with_two_slashes_in_its_name_is_read(gcs_bucket: str) -> None:
    """A listing of gcsfs has it as an empty folder: its rows were left out, without a word."""
    import fsspec

    filesystem, root = fsspec.url_to_fs(gcs_bucket)
    for name in ("rows/1.jsonl", "rows//2.jsonl"):
        filesystem.pipe_file(f"{root}/{name}", b'{"text": "a"}\n')
    source = source_of(f"{gcs_bucket}/rows")
    reader = Reader(source)
    assert [reader.next() is not None for _ in range(3)] == [True, True, False]
