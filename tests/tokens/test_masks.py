"""What is trained on: exactly the assistant's words and the ends of its turns, in every family.

Every case is judged by the slow reference of `chat_families`, character by character.
"""

import unicodedata
from functools import cache
from typing import Any, cast

import pytest
from chat_families import Case, Family, families, with_core
from hypothesis import given, settings
from hypothesis import strategies as st

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow, PreferenceRow, UnpairedRow
from steps.data.tokens.config import Inserted, TokenizeConfig, TrainOn
from steps.data.tokens.pairs import TokenizedPair, tokenize_pairs
from steps.data.tokens.tokenizing import (
    Tokenization,
    TokenizedConversation,
    tokenization,
    tokenize_completions,
    tokenize_conversations,
)

FAMILIES = (
    "chatml", "smollm2", "chatml_generation", "llama3", "qwen2_5", "qwen3", "gemma", "mistral",
)  # fmt: skip
"""Their tokenizers are made when a test needs them."""
WRITE_TOOLS = {"llama3", "qwen2_5", "qwen3", "mistral"}
TRAIN_ON = {TrainOn.last_turn: False, TrainOn.all_turns: True}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"city": "string"}}}
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = (
    user("Wie ist das Wetter in Zürich?"),
    assistant("", tool_calls=[call("weather", city="Zürich")]),
    {"role": "tool", "content": '{"sky": "☀️"}'},
    assistant("Sunny."),
)

CASES = {
    "single turn": Case((user("What is the capital of France?"), assistant("Paris."))),
    "several turns": Case(
        (user("One?"), assistant("1"), user("Two?"), assistant(" 2\n"), user("?"), assistant("3!"))
    ),
    "the same words in all turns": Case((user("a"), assistant("a"), user("a"), assistant("a"))),
    "system": Case((SYSTEM, user("Hello"), assistant("Good day to you."))),
    "tools": Case(ASKED, tools=(WEATHER,)),
    "a call last": Case(ASKED[:2], tools=(WEATHER,)),
    "empty text": Case((user("Say nothing."), assistant(""))),
    "empty texts": Case((user(""), assistant(""), user("x"), assistant(""))),
    "white space": Case((user(" \n"), assistant("\n\n  two lines\n\n"))),
    "space before": Case((user("go on"), assistant(" and so on "))),
    "not ASCII": Case((user("東京は？"), assistant("Ça va très bien: 東京 ü – ½."))),
    "emoji": Case((user("👩‍👩‍👧‍👦?"), assistant("🎉👍🏽 yes 🏳️‍🌈"))),
    "half of a mark-up": Case((user("<|im_"), assistant("[/INS <|im_start <start_of_ <| >"))),
    "a header in the question": Case((user("x<|im_start|>assistant\nyes"), assistant("no"))),
    "very long": Case((user("word " * 1000), assistant("écho 東京 " * 1000))),
}


def test_every_family_is_tested() -> None:
    assert tuple(families()) == FAMILIES


@cache
def numbers(family: Family, train_on: TrainOn) -> Tokenization:
    roomy = TokenizeConfig(10**6, 10**6, train_on=train_on)
    return tokenization(family.tokenizer, roomy)


def tokenized(
    family: Family, case: Case, train_on: TrainOn
) -> TokenizedConversation | MalformedRow:
    row = ConversationRow("1", cast(Any, case.messages), case.tools, case.template_kwargs)
    (result,) = tokenize_conversations(numbers(family, train_on), [row])
    return result


def assert_as_reference(family: Family, case: Case, train_on: TrainOn) -> None:
    """Ids and mask are the reference's, up to the last trained token; so is the decoded text."""
    text, _ = family.characters(case, TRAIN_ON[train_on])
    written = family.tokenizer.apply_chat_template(
        [dict(message) for message in case.messages],
        tools=list(case.tools) if case.tools else None,  # pyright: ignore
        tokenize=False,
        **(case.template_kwargs or {}),
    )
    assert text == written, "the reference does not know this template"
    ids, mask, merged = family.tokens(case, TRAIN_ON[train_on])

    result = tokenized(family, case, train_on)

    assert isinstance(result, TokenizedConversation), result
    end = max(index for index, trained in enumerate(mask) if trained) + 1
    assert result.tokens.ids == ids[:end]
    assert result.tokens.mask == mask[:end]
    assert result.findings.merged == merged


@pytest.mark.parametrize("train_on", TRAIN_ON)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_trained_are_the_assistants_words_and_the_ends_of_its_turns(
    family: str, name: str, train_on: TrainOn
) -> None:
    chosen, case = families()[family], CASES[name]
    reason = chosen.refuses.get(name) or chosen.refuses.get(f"{name}, {train_on}")
    if reason is None:
        assert_as_reference(chosen, case, train_on)
        return
    result = tokenized(chosen, case, train_on)
    assert isinstance(result, MalformedRow)
    assert result.reason == reason


def is_stable(text: str) -> bool:
    """A normaliser leaves the text as it is, so that tokens add up to it, whatever stands beside;
    a space is no mark of its own in the reference, and reasoning has tests of its own."""
    composed = unicodedata.is_normalized("NFC", text) and not any(map(unicodedata.combining, text))
    return composed and "▁" not in text and "think>" not in text


any_turns = st.sampled_from(sorted(TRAIN_ON))
TEXTS = st.text(
    st.sampled_from("ab Z.\n\té東🎉#<|_>/i0") | st.characters(codec="utf-8"), max_size=12
).filter(is_stable)


@st.composite
def conversations(draw: st.DrawFn) -> Case:
    rounds = draw(st.integers(1, 3))
    turns = [
        message for _ in range(rounds) for message in (user(draw(TEXTS)), assistant(draw(TEXTS)))
    ]
    system = draw(st.booleans())
    return Case((*([SYSTEM] if system else []), *turns))


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=settings().max_examples // 16)
@given(case=conversations(), train_on=any_turns)
def test_random_conversations_are_masked_as_the_reference_does(
    family: str, case: Case, train_on: TrainOn
) -> None:
    chosen = families()[family]
    if case.messages[0]["role"] == "system" and "system" in chosen.refuses:
        case = Case(case.messages[1:])
    assert_as_reference(chosen, case, train_on)


def as_pair(row: str, case: Case, rejected: str) -> PreferenceRow:
    *prompt, answer = case.messages
    sides: list[Any] = [tuple(prompt), (answer,), (assistant(rejected),)]
    return PreferenceRow(row, sides[0], sides[1], sides[2], case.tools, case.template_kwargs)


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=settings().max_examples // 16)
@given(
    batch=st.lists(st.tuples(conversations(), TEXTS), min_size=1, max_size=4), train_on=any_turns
)
def test_a_pair_is_two_conversations_with_one_prompt(
    family: str, batch: list[tuple[Case, str]], train_on: TrainOn
) -> None:
    """However little of it was encoded: both sides have the tokens of a conversation whole."""
    chosen = families()[family]
    rows = [as_pair(str(i), case, rejected) for i, (case, rejected) in enumerate(batch)]

    results = tokenize_pairs(numbers(chosen, train_on), rows)

    for row, result in zip(rows, results, strict=True):
        sides = [
            tokenized(chosen, Case((*row.prompt, *side)), train_on)
            for side in (row.chosen, row.rejected)
        ]
        if isinstance(result, MalformedRow):
            if result.reason == "identical responses":
                assert sides[0] == sides[1]
            elif result.reason == "template does not extend the prompt":
                assert family == "mistral"
            else:
                assert result.reason in {s.reason for s in sides if isinstance(s, MalformedRow)}
            continue
        for tokens, side in zip((result.chosen, result.rejected), sides, strict=True):
            assert isinstance(side, TokenizedConversation)
            assert [*result.prompt.ids, *tokens.ids] == side.tokens.ids
            assert [*result.prompt.mask, *tokens.mask] == side.tokens.mask
        assert result.prompt.ids


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=settings().max_examples // 16)
@given(case=conversations(), train_on=any_turns)
def test_a_completion_is_a_conversation_parted_where_it_begins(
    family: str, case: Case, train_on: TrainOn
) -> None:
    chosen = families()[family]
    *prompt, answer = cast(Any, case.messages)
    row = UnpairedRow("1", tuple(prompt), (answer,), label=True)

    (result,) = tokenize_completions(numbers(chosen, train_on), [row])

    whole = tokenized(chosen, case, train_on)
    if isinstance(result, MalformedRow):
        lost = "template does not extend the prompt"  # a check that has no sense without a prompt
        assert result.reason == (whole.reason if isinstance(whole, MalformedRow) else lost)
        return
    assert isinstance(whole, TokenizedConversation)
    parts = (result.prompt, result.completion)
    assert [*parts[0].ids, *parts[1].ids] == whole.tokens.ids
    assert [*parts[0].mask, *parts[1].mask] == whole.tokens.mask
    assert result.completion.mask[0] or result.findings.merged


# --- templates that rewrite ----------------------------------------------------------------------

THOUGHT = "<think>\nFirst this.\n</think>\n\nThen that."
REASONED = {
    "in the text, last": Case((user("q"), assistant(THOUGHT))),
    "in the text, earlier": Case((user("q"), assistant(THOUGHT), user("r"), assistant("a"))),
    "in both": Case((user("q"), assistant(THOUGHT), user("r"), assistant(THOUGHT))),
    "as a field": Case((user("q"), assistant("Then that.", reasoning_content="First this."))),
    "before a call": Case(
        (
            user("q"),
            assistant("", reasoning_content="Ask.", tool_calls=[call("weather", city="Zürich")]),
            {"role": "tool", "content": "sun"},
            assistant("Sunny.", reasoning_content="So it is."),
        ),
        tools=(WEATHER,),
    ),
    "switched off": Case((user("q"), assistant("a")), template_kwargs={"enable_thinking": False}),
}


@pytest.mark.parametrize("train_on", TRAIN_ON)
@pytest.mark.parametrize("name", REASONED)
def test_reasoning_is_trained_on_where_the_template_keeps_it_and_only_if_it_is_there(
    name: str, train_on: TrainOn
) -> None:
    assert_as_reference(families()["qwen3"], REASONED[name], train_on)


@pytest.mark.parametrize("inserted", Inserted)
def test_an_empty_thought_that_the_template_adds_is_trained_on_or_read(inserted: Inserted) -> None:
    family, thought = families()["qwen3"], "<think>\n\n</think>\n\n"
    config = TokenizeConfig(10**6, 10**6, inserted=inserted)
    row = as_pair("1", Case((user("q"), assistant("yes"))), "no")

    (pair,) = tokenize_pairs(tokenization(family.tokenizer, config), [row])

    assert isinstance(pair, TokenizedPair)
    read = thought if inserted == Inserted.read else ""
    prompt, chosen = (str(family.tokenizer.decode(t.ids)) for t in (pair.prompt, pair.chosen))
    assert prompt.endswith(f"assistant\n{read}")
    assert read + chosen == f"{thought}yes<|im_end|>"
    assert all(pair.chosen.mask)
    assert pair.findings.rewritten == bool(read)  # generation begins before the thought


def test_a_prompt_that_loses_its_system_message_once_it_is_answered_is_dropped() -> None:
    row = as_pair("1", Case((SYSTEM, user("q"), assistant("yes"))), "no")

    (result,) = tokenize_pairs(numbers(families()["mistral"], TrainOn.last_turn), [row])

    assert isinstance(result, MalformedRow)
    assert result.reason == "template does not extend the prompt"
    assert "system message" in result.detail


def reformatted(family: str, old: str, new: str, eos: str) -> Family:
    """A family with another template; its reference is not that of this template."""
    base = families()[family].tokenizer
    template = str(base.chat_template)
    assert old in template
    bos = str(base.bos_token) if base.bos_token else None
    tokenizer = with_core(base.backend_tokenizer, template.replace(old, new), eos, bos)
    return Family(family, tokenizer, families()[family].pieces, {})


def test_a_header_that_starts_a_thought_which_answers_lack_is_told_as_a_rewritten_prompt() -> None:
    header = "{{ '<|im_start|>assistant\\n' }}"
    family = reformatted("chatml", header, header.replace("\\n'", "\\n<think>\\n'"), "<|im_end|>")
    row = as_pair("1", Case((user("q"), assistant("yes"))), "no")

    (pair,) = tokenize_pairs(numbers(family, TrainOn.last_turn), [row])

    assert isinstance(pair, TokenizedPair)
    assert pair.findings.rewritten
    assert str(family.tokenizer.decode(pair.prompt.ids)).endswith("<|im_start|>assistant\n")
    assert family.tokenizer.decode(pair.chosen.ids) == "yes<|im_end|>"


@pytest.mark.parametrize("family", FAMILIES)
def test_tools_that_a_template_does_not_write_are_told(family: str) -> None:
    case = Case((user("q"), assistant("a")), tools=(WEATHER,))

    result = tokenized(families()[family], case, TrainOn.last_turn)

    assert isinstance(result, TokenizedConversation), result
    text = str(families()[family].tokenizer.decode(result.tokens.ids))
    assert result.findings.tools_lost == ("weather" not in text)
    assert result.findings.tools_lost == (family not in WRITE_TOOLS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tool_is_written_as_servers_hand_it_over(family: str) -> None:
    turns = (user("q"), assistant("a"))
    inner = WEATHER["function"]
    whole, bare, flat = (
        tokenized(families()[family], Case(turns, tools=(tool,)), TrainOn.last_turn)
        for tool in (WEATHER, inner, {"type": "function", **inner})
    )
    assert bare == whole
    assert flat == whole


@pytest.mark.parametrize("shape", [{}, {"name": 1}, {"function": "weather"}, {"function": None}])
@pytest.mark.parametrize("family", FAMILIES)
def test_tools_and_calls_of_another_shape_cost_their_row_at_most(
    family: str, shape: dict[str, Any]
) -> None:
    called = Case((user("q"), assistant("a", tool_calls=[shape])), tools=(shape,))
    unused = Case((user("q"), assistant("a")), tools=(shape,))

    results = [tokenized(families()[family], case, TrainOn.last_turn) for case in (called, unused)]

    assert all(isinstance(r, TokenizedConversation | MalformedRow) for r in results)


def test_words_that_a_template_changes_are_not_searched_for() -> None:
    family = reformatted("chatml", "message.content", "message.content | upper", "<|im_end|>")

    result = tokenized(family, Case((user("q"), assistant("yes"))), TrainOn.last_turn)

    assert isinstance(result, MalformedRow)
    assert result.reason == "assistant turn not found in the rendered text"


def test_generation_marks_that_mark_nothing_are_refused_and_not_an_empty_mask() -> None:
    family = reformatted("chatml_generation", "== 'assistant'", "== 'model'", "<|im_end|>")

    result = tokenized(family, Case((user("q"), assistant("yes"))), TrainOn.last_turn)

    assert isinstance(result, MalformedRow)
    assert result.reason == "template marks no assistant turn"


def test_generation_marks_say_what_is_trained_on_of_a_turn() -> None:
    marked = "{%- generation -%}{{ message.content + '<|im_end|>\\n' }}{%- endgeneration -%}"
    only_text = "{%- generation -%}{{ message.content }}{%- endgeneration -%}{{ '<|im_end|>\\n' }}"
    family = reformatted("chatml_generation", marked, only_text, "<|im_end|>")

    result = tokenized(family, Case((user("q"), assistant("yes"))), TrainOn.last_turn)

    assert isinstance(result, TokenizedConversation)
    trained = zip(result.tokens.ids, result.tokens.mask, strict=True)
    assert family.tokenizer.decode([token for token, is_trained in trained if is_trained]) == "yes"


def test_a_template_that_writes_bos_twice_is_refused() -> None:
    family = reformatted("llama3", "{{- bos_token -}}", "{{- bos_token * 2 -}}", "<|eot_id|>")

    result = tokenized(family, Case((user("q"), assistant("yes"))), TrainOn.last_turn)

    assert isinstance(result, MalformedRow)
    assert result.reason == "doubled special token"


def test_only_the_pipeline_sets_how_a_template_is_applied() -> None:
    case = Case((user("q"), assistant("a")), template_kwargs={"chat_template": "{{ 1 }}"})

    result = tokenized(families()["chatml"], case, TrainOn.last_turn)

    assert isinstance(result, MalformedRow)
    assert "chat_template" in result.detail
