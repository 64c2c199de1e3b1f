"""What a user's records become: rows, and a named reason for each record that is none."""

import json
import math
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steps.data.formats import RecordFormat
from steps.data.formats.by_name import FORMATS
from steps.data.formats.chat import ChatFormat, CompletionFormat
from steps.data.formats.choice import FormatChoice, choose_format, format_name
from steps.data.formats.plain_texts import HHFormat, TextFormat
from steps.data.formats.preference import PreferenceFormat
from steps.data.formats.prompt import PromptFormat
from steps.data.formats.unpaired import UnpairedFormat
from steps.data.rows.reasons import MalformedRow, Reason
from steps.data.rows.rows import (
    ConversationRow,
    Message,
    PreferenceRow,
    PromptRow,
    Row,
    TextRow,
    UnpairedRow,
)
from steps.data.rows.tables import from_record, to_record

PAIR = PreferenceFormat()


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def human(text: str) -> dict[str, str]:
    return {"from": "human", "value": text}


def gpt(text: str) -> dict[str, str]:
    return {"from": "gpt", "value": text}


QUESTION = user("Capital of France?")
PARIS, ROME, OSLO = assistant("Paris."), assistant("Rome."), assistant("Oslo.")
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"city": "Paris"}}}
LOOKS_UP: Message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT: Message = {"role": "tool", "content": "capital", "name": "look_up", "tool_call_id": "c1"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}


# --- preferences -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        {"chosen": [QUESTION, PARIS], "rejected": [QUESTION, ROME]},
        {"prompt": "Capital of France?", "chosen": "Paris.", "rejected": "Rome."},
        {"prompt": [QUESTION], "chosen": "Paris.", "rejected": "Rome."},
        {"prompt": "Capital of France?", "chosen": [PARIS], "rejected": [ROME]},
        {"prompt": [QUESTION], "chosen": [PARIS], "rejected": [ROME]},
        {"prompt": [QUESTION], "chosen": [QUESTION, PARIS], "rejected": "Rome."},
        {"prompt": None, "chosen": [QUESTION, PARIS], "rejected": [QUESTION, ROME]},
        {
            "prompt": [human("Capital of France?")],
            "chosen": [human("Capital of France?"), gpt("Paris.")],
            "rejected": [gpt("Rome.")],
        },
        {
            "chosen": f" {json.dumps([QUESTION, PARIS])}",
            "rejected": f"\n{json.dumps([QUESTION, ROME])}",
        },
    ],
    ids=[
        "implicit prompt", "strings (TRL standard)", "prompt messages", "response turns",
        "TRL conversational", "mixed", "null prompt", "ShareGPT keys", "JSON text",
    ],
)  # fmt: skip
def test_every_spelling_of_one_pair_gives_the_same_pair(record: dict[str, Any]) -> None:
    assert PAIR.parse(record, "1") == PreferenceRow("1", (QUESTION,), (PARIS,), (ROME,))


def test_names_of_fields_can_be_given() -> None:
    record = {"question": "Capital of France?", "better": "Paris.", "worse": "Rome.", "s": 2}
    named = PreferenceFormat(prompt="question", chosen="better", rejected="worse", score_chosen="s")

    assert named.parse(record, "1").score_chosen == 2.0
    with pytest.raises(MalformedRow, match="no rejected: worse is missing"):
        named.parse({**record, "worse": None}, "1")


def test_a_weight_is_read_where_its_field_is_named() -> None:
    weighted = PreferenceFormat(weight="weight")

    assert weighted.parse({**BOTH, "weight": 2}, "1").weight == 2.0
    assert PAIR.parse({**BOTH, "weight": 2}, "1").weight is None
    assert weighted.parse({**BOTH, "weight": "2"}, "1").weight == 2.0
    for wrong in (None, -1, "N/A", math.inf):
        with pytest.raises(MalformedRow, match="weight not a number: weight is"):
            weighted.parse({**BOTH, "weight": wrong}, "1")


def test_everything_before_the_first_difference_is_the_prompt() -> None:
    history = [system("Be brief."), QUESTION, PARIS, user("And of Italy?")]

    pair = PAIR.parse({"chosen": [*history, ROME], "rejected": [*history, OSLO]}, "1")

    assert pair.prompt == tuple(history)
    assert (pair.chosen, pair.rejected) == ((ROME,), (OSLO,))


def test_a_prompt_field_that_opens_a_longer_conversation_is_no_contradiction() -> None:
    history = [QUESTION, PARIS, user("And of Italy?")]
    record = {
        "prompt": "Capital of France?",
        "chosen": [*history, ROME],
        "rejected": [*history, OSLO],
    }

    assert PAIR.parse(record, "1").prompt == tuple(history)


def test_tools_and_template_arguments_come_with_the_row_as_objects_or_as_json() -> None:
    record = {
        "chosen": [QUESTION, LOOKS_UP, RESULT, PARIS],
        "rejected": [QUESTION, ROME],
        "tools": json.dumps([TOOL]),
        "chat_template_kwargs": {"thinking": False, "of another row": None},
    }

    pair = PAIR.parse(record, "1")

    assert pair.chosen == (LOOKS_UP, RESULT, PARIS)
    assert pair.tools == (TOOL,)
    assert pair.template_kwargs == {"thinking": False}
    as_text = {**LOOKS_UP, "content": None, "tool_calls": json.dumps([CALL]), "name": None}
    assert PAIR.parse({**record, "chosen": [QUESTION, as_text, RESULT, PARIS]}, "1") == pair


def test_a_system_prompt_is_given_to_conversations_that_have_none() -> None:
    given = PreferenceFormat(system="Be kind.", system_field="instructions")
    plain = {"chosen": [QUESTION, PARIS], "rejected": [QUESTION, ROME]}
    own = {side: [system("Be brief."), *plain[side]] for side in plain}

    assert given.parse(plain, "1").prompt == (system("Be kind."), QUESTION)
    assert given.parse(own, "1").prompt == (system("Be brief."), QUESTION)
    field = given.parse({**plain, "instructions": "Be wise."}, "1")
    assert field.prompt == (system("Be wise."), QUESTION)
    usual = {"system": "Be wise.", "messages": [QUESTION, PARIS]}
    assert ChatFormat().parse(usual, "1").messages == (system("Be wise."), QUESTION, PARIS)


NEST: list[Any] = json.loads("[" * 200 + "]" * 200)
BOTH: dict[str, Any] = {"chosen": [QUESTION, PARIS], "rejected": [QUESTION, ROME]}
BAD_PAIRS: list[tuple[Reason, dict[str, Any], str]] = [
    ("no chosen", {"prompt": "Q", "rejected": "b"}, "chosen"),
    ("no rejected", {"prompt": "Q", "chosen": "a", "rejected": None}, "rejected"),
    ("no prompt", {"chosen": "a", "rejected": "b"}, "prompt"),
    ("no prompt", {"chosen": [PARIS], "rejected": [ROME]}, "chosen"),
    ("no prompt", {"prompt": "  ", "chosen": "a", "rejected": "b"}, "blank"),
    ("no prompt", {**BOTH, "prompt": []}, "prompt"),
    ("empty conversation", {**BOTH, "chosen": []}, "chosen"),
    ("empty response", {**BOTH, "chosen": [QUESTION, assistant(" \n")]}, "chosen"),
    ("empty response", {"prompt": "Q", "chosen": "a", "rejected": ""}, "rejected"),
    ("wrong role order", {**BOTH, "chosen": [QUESTION, PARIS, user("x")]}, "user, assistant, user"),
    ("wrong role order", {**BOTH, "rejected": [QUESTION, QUESTION, ROME]}, "rejected"),
    ("wrong role order", {**BOTH, "chosen": [QUESTION, system("x"), PARIS]}, "system"),
    ("no prompt", {**BOTH, "chosen": [system("x"), PARIS]}, "chosen holds no user message"),
    ("wrong role order", {**BOTH, "chosen": [PARIS, ROME]}, "assistant, assistant"),
    ("wrong role order", {**BOTH, "chosen": [system("x")]}, "system"),
    ("wrong role order", {**BOTH, "chosen": [QUESTION, RESULT, PARIS]}, "tool comes after user"),
    ("unknown role", {**BOTH, "chosen": [{"role": "narrator", "content": "a"}]}, "chosen[0].role"),
    ("unknown role", {**BOTH, "chosen": [QUESTION, {"content": "a"}]}, "chosen[1] has 'content'"),
    ("unknown role", {**BOTH, "chosen": [{"from": ["x"], "value": "a"}]}, "chosen[0].role"),
    ("content not a string", {**BOTH, "chosen": [QUESTION, {"role": "assistant"}]}, "chosen[1]"),
    ("content not a string", {**BOTH, "rejected": [QUESTION, "Rome."]}, "rejected[1]"),
    ("content not a string", {**BOTH, "rejected": 7}, "rejected is int 7"),
    ("content not a string", {**BOTH, "chosen": str([QUESTION, PARIS])}, "json.dumps"),
    ("content not a string", {**BOTH, "chosen": json.dumps([QUESTION, PARIS])[:-1]}, "no JSON"),
    ("content not a string", {**BOTH, "system": {"text": "Hi"}}, "system is dict"),
    ("content not a string", {**BOTH, "prompt": {"text": "Q"}}, "prompt is dict"),
    ("not valid Unicode", {"prompt": "Q", "chosen": "\ud800", "rejected": "b"}, "chosen"),
    ("not valid Unicode", {**BOTH, "tools": [{"name": "\ud800"}]}, "tools"),
    ("score not a number", {**BOTH, "score_chosen": "N/A"}, "score_chosen"),
    ("score not a number", {**BOTH, "score_rejected": True}, "score_rejected"),
    ("score not a number", {**BOTH, "score_rejected": float("inf")}, "infinite"),
    ("score not a number", {**BOTH, "score_rejected": 10**400}, "out of range"),
    ("tools not a list of objects", {**BOTH, "tools": "look_up"}, "tools is str"),
    ("tools not a list of objects", {**BOTH, "tools": [1]}, "tools is list"),
    (
        "tools not a list of objects",
        {**BOTH, "chosen": [QUESTION, {**PARIS, "tool_calls": "x"}]},
        "chosen[1].tool_calls",
    ),
    ("template arguments not an object", {**BOTH, "chat_template_kwargs": [1]}, "kwargs is list"),
    ("unreadable value", {**BOTH, "tools": [{"size": float("nan")}]}, "tools"),
    ("unreadable value", {**BOTH, "tools": [{"x": NEST}]}, "tools: nested over 100 deep"),
    (
        "unreadable value",
        {**BOTH, "chosen": [QUESTION, {**PARIS, "tool_calls": [{"x": NEST}]}]},
        "chosen[1].tool_calls: nested",
    ),
    ("different prompts", {**BOTH, "rejected": [user("Other?"), ROME]}, "chosen and rejected"),
    ("different prompts", {**BOTH, "prompt": "Other?"}, "prompt"),
    ("different prompts", {**BOTH, "chosen": [*BOTH["rejected"], user("?"), PARIS]}, "number 3"),
    (
        "different prompts",
        {side: [QUESTION, PARIS, user(f"{side}?"), ROME] for side in ("chosen", "rejected")},
        "number 3",
    ),
    ("identical responses", {**BOTH, "rejected": [QUESTION, PARIS]}, "same text"),
]  # fmt: skip
ASKED, END = "\n\nHuman: Capital of France?", "\n\nAssistant:"
DIALOGUE = f"{ASKED}{END} Paris."
GOOD = {"prompt": "Q", "completion": "a"}
BESIDE = {"prompt": "Capital of France?", "chosen": DIALOGUE, "rejected": DIALOGUE + "x"}
BAD_ROWS: list[tuple[RecordFormat, Reason, dict[str, Any], str]] = [
    *((PAIR, *bad) for bad in BAD_PAIRS),
    (HHFormat(), "no turn markers", {"chosen": "Paris.", "rejected": DIALOGUE}, "chosen"),
    (HHFormat(), "no chosen", {"rejected": DIALOGUE}, "chosen"),
    (HHFormat(), "no rejected", {"chosen": DIALOGUE}, "rejected"),
    (HHFormat(), "content not a string", {"chosen": [1], "rejected": DIALOGUE}, "chosen"),
    (HHFormat(), "wrong role order", {"chosen": ASKED, "rejected": DIALOGUE}, "chosen has user"),
    (HHFormat(), "empty response", {"chosen": ASKED + END, "rejected": DIALOGUE}, "chosen"),
    (PAIR, "dialogue in one string", BESIDE, "chosen holds turns"),
    (CompletionFormat(), "dialogue in one string", {**GOOD, "prompt": ASKED + END}, "prompt holds"),
    (ChatFormat(), "no messages", {}, "messages"),
    (ChatFormat(), "content not a string", {"messages": "hello"}, "messages is str"),
    (ChatFormat(), "empty conversation", {"messages": []}, "messages"),
    (ChatFormat(), "wrong role order", {"messages": [QUESTION]}, "the last message"),
    (ChatFormat(), "empty response", {"messages": [QUESTION, assistant(" "), QUESTION]}, "blank"),
    (ChatFormat(turns="any"), "wrong role order", {"messages": [PARIS, QUESTION]}, "the last"),
    (CompletionFormat(), "no completion", {"prompt": "Q"}, "completion"),
    (CompletionFormat(), "no prompt", {"completion": "a"}, "prompt"),
    (PromptFormat(), "no prompt", {"prompt": [system("x")]}, "prompt"),
    (PromptFormat(), "wrong role order", {"prompt": [QUESTION, PARIS]}, "the last message"),
    (PromptFormat(), "answer not a string", {"prompt": "Q", "answer": 1.5}, "answer"),
    (PromptFormat(), "answer not a string", {"prompt": "Q", "answer": ["1", "2"]}, "answer.0"),
    (UnpairedFormat(), "no label", GOOD, "label"),
    (UnpairedFormat(), "label is a rating", {**GOOD, "label": 2}, "label is int 2"),
    (UnpairedFormat(), "label is a rating", {**GOOD, "label": "-1"}, "label is str '-1'"),
    (UnpairedFormat(), "label not a boolean", {**GOOD, "label": "ok"}, "label is str 'ok'"),
    (UnpairedFormat(), "no label", {**GOOD, "label": float("nan")}, "label is missing"),
    (UnpairedFormat(), "empty response", {**GOOD, "completion": " ", "label": True}, "blank"),
    (TextFormat(), "no text", {}, "text is missing"),
    (TextFormat(), "no text", {"text": "\n"}, "text is blank"),
    (TextFormat(), "content not a string", {"text": 1}, "text"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "reason", "record", "named"), BAD_ROWS)
def test_a_record_that_is_no_row_is_refused_with_its_reason(
    form: RecordFormat, reason: Reason, record: dict[str, Any], named: str
) -> None:
    with pytest.raises(MalformedRow) as caught:
        form.parse(record, "1")

    assert caught.value.reason == reason
    assert named in caught.value.detail


# --- other formats -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "record", "expected"),
    [
        (
            ChatFormat(),
            {"messages": [QUESTION, LOOKS_UP, RESULT, PARIS], "tools": [TOOL]},
            ConversationRow("1", (QUESTION, LOOKS_UP, RESULT, PARIS), (TOOL,)),
        ),
        (
            ChatFormat(messages="conversations", system="Hi"),
            {"conversations": [human("Capital of France?"), gpt("Paris.")]},
            ConversationRow("1", (system("Hi"), QUESTION, PARIS)),
        ),
        (
            CompletionFormat(),
            {"prompt": "Capital of France?", "completion": [PARIS]},
            ConversationRow("1", (QUESTION, PARIS)),
        ),
        (
            PromptFormat(answer="gold"),
            {"prompt": "Capital of France?", "gold": 62},
            PromptRow("1", (QUESTION,), "62"),
        ),
        (
            PromptFormat(),
            {"prompt": [QUESTION, LOOKS_UP, RESULT]},
            PromptRow("1", (QUESTION, LOOKS_UP, RESULT)),
        ),
        (
            UnpairedFormat(),
            {"prompt": [QUESTION], "completion": "Paris.", "label": False},
            UnpairedRow("1", (QUESTION,), (PARIS,), False),
        ),
        (TextFormat(), {"text": " a\r\n"}, TextRow("1", " a\r\n")),
    ],
)
def test_a_record_of_each_format_becomes_its_row(
    form: RecordFormat, record: dict[str, Any], expected: Row
) -> None:
    row = form.parse(record, "1")

    assert row == expected
    assert not isinstance(row, Sequence)
    assert from_record(type(row), to_record(row)) == row, "it survives Parquet's columns"


# --- which format ------------------------------------------------------------------------------


def chosen(records: list[dict[str, Any]], makes: type = PreferenceRow) -> RecordFormat:
    return choose_format(FormatChoice(), records, makes, "rows.jsonl")


@pytest.mark.parametrize(
    ("records", "makes", "expected"),
    [
        ([BOTH, {}, {"text": "x"}], PreferenceRow, PAIR),
        ([{"chosen": DIALOGUE, "rejected": DIALOGUE + "x"}], PreferenceRow, HHFormat()),
        ([{"messages": [QUESTION, PARIS]}], ConversationRow, ChatFormat()),
        ([{"conversations": [gpt("x")]}], ConversationRow, ChatFormat(messages="conversations")),
        ([{"prompt": "Q", "completion": "a"}], ConversationRow, CompletionFormat()),
        ([{"prompt": "Q", "chosen": "a"}], PromptRow, PromptFormat()),
        ([{"prompt": "Q", "completion": "a", "label": True}], UnpairedRow, UnpairedFormat()),
        ([{"text": "x"}], TextRow, TextFormat()),
    ],
)
def test_a_format_is_found_out_where_there_is_no_doubt(
    records: list[dict[str, Any]], makes: type, expected: RecordFormat
) -> None:
    assert chosen(records, makes) == expected


@pytest.mark.parametrize(
    ("records", "makes", "message"),
    [
        ([{"question": "Q", "better": "a"}], PreferenceRow, "no format fits; .*better, question"),
        ([{"messages": [], "conversations": []}], ConversationRow, "no format fits"),
        ([{"messages": [], "prompt": "Q", "completion": "a"}], ConversationRow, "chat and comp"),
        ([BOTH, {"chosen": DIALOGUE, "rejected": DIALOGUE}], PreferenceRow, "hh_rlhf and pref"),
    ],
)
def test_where_there_is_doubt_the_user_is_asked(
    records: list[dict[str, Any]], makes: type, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"rows\.jsonl: cannot tell .*{message}.*data.format="):
        chosen(records, makes)


def test_a_named_format_is_taken_with_its_field_names_and_system_prompt() -> None:
    choice = FormatChoice("preference", {"prompt": "question"}, "Be kind.")

    found = choose_format(choice, [], PreferenceRow, "x")

    assert found == PreferenceFormat(prompt="question", system="Be kind.")
    assert format_name(found) == "preference (prompt=question)"
    with pytest.raises(ValueError, match="format preference makes PreferenceRows, and PromptRows"):
        choose_format(choice, [], PromptRow, "x")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "preferences"}, "unknown format 'preferences': .*did you mean preference"),
        ({"name": "chat", "fields": {"prompt": "q"}}, "format chat has no field prompt: messages"),
        ({"fields": {"prompt": "q"}}, "field names need a format"),
        ({"name": "text", "system": "x"}, "no system prompt"),
    ],
)
def test_a_format_that_cannot_be_is_refused_when_it_is_named(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FormatChoice(**settings)


# --- whatever a record holds -------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["user", "assistant", "system", "tool", "human", "gpt", DIALOGUE, "[{}]"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "from", "value", "tool_calls", "name"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool"]),
            "content": st.sampled_from(["a", "b", ""]),
        }
    ),
    max_size=4,
)
FIELDS = st.sampled_from(
    ["prompt", "chosen", "rejected", "score_chosen", "messages", "completion", "label", "answer",
     "text", "tools", "chat_template_kwargs"]
)  # fmt: skip


def outcome(form: RecordFormat, record: dict[str, Any]) -> Row | MalformedRow:
    try:
        row = form.parse(record, "1")
    except MalformedRow as problem:
        return problem
    assert not isinstance(row, Sequence)
    return row


@given(st.sampled_from(sorted(FORMATS)), st.dictionaries(FIELDS, ANYTHING | TURNS))
def test_whatever_a_record_holds_it_is_a_row_or_dropped_for_a_listed_reason(
    name: str, record: dict[str, Any]
) -> None:
    row = outcome(FormatChoice(name).format_named(name, {}), record)

    if isinstance(row, MalformedRow):
        assert row.reason in get_args(Reason)
        assert row.detail.encode()
        return
    assert from_record(type(row), to_record(row)) == row
    if isinstance(row, PreferenceRow):
        assert row.prompt[-1]["role"] in ("user", "tool")
        assert row.chosen[0]["role"] == row.chosen[-1]["role"] == "assistant"
        assert row.rejected[0]["role"] == row.rejected[-1]["role"] == "assistant"
        assert row.chosen[0] != row.rejected[0]
