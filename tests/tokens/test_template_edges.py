"""The edges of a turn, family by family: where an answer begins, what ends it, what is lost.

Templates here are written for these tests; each shows one edge that real families have. What is
made of them is judged by `benchmarks.template_oracle`, which knows who wrote which letter, and by
the text that is trained on.
"""

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import Any

import pytest

from benchmarks.chat_templates import CALL, CASES, TOOL, called, result, said, tokenizer_for, user
from benchmarks.template_oracle import Conversation, Made, Oracle
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow, PreferenceRow
from steps.data.tokens.config import Inserted, Lost, TokenizeConfig, TrainOn
from steps.data.tokens.pairs import TokenizedPair, tokenize_pairs
from steps.data.tokens.rendering import chat_format
from steps.data.tokens.tokenizing import tokenization, tokenize_conversations

ROLES = "{% for m in messages %}{% if m.role == 'assistant' %}ANSWER{% else %}OTHER{% endif %}"
CALLS = (
    "{% for c in m.tool_calls or [] %}<|call|>{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}<|/call|>{% endfor %}"
)
END = "{% endfor %}"


def family(answer: str, other: str, prompt: str, after: str = "") -> str:
    body = ROLES.replace("ANSWER", answer).replace("OTHER", other)
    asked = "{% if add_generation_prompt %}" + prompt + "{% else %}" + after + "{% endif %}"
    return body + END + asked


OTHER = "<|start|>{{ m.role }}<|text|>{{ m.content }}<|end|>"
CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
FAMILIES = {
    "two tokens end a turn": family(
        "<|open|><|bot|>{{ m.content }}" + CALLS + "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
        "<|open|><|{{ m.role }}|>{{ m.content }}<|END_OF_TURN_TOKEN|>",
        "<|open|><|bot|>",
    ),
    "calls end in one token less": family(
        "<|open|><|bot|>{% if m.tool_calls %}" + CALLS + "{% else %}{{ m.content }}<|END_RESPONSE|>"
        "{% endif %}<|END_OF_TURN_TOKEN|>{% if m.tool_calls %}<|open|><|bot|>{% endif %}",
        "<|open|><|{{ m.role }}|>{{ m.content }}<|END_OF_TURN_TOKEN|>",
        "<|open|><|bot|>",
    ),
    "the document ends in a token of its own": family(
        "<|bot|>\n{{ m.reasoning_content }}{{ m.content }}" + CALLS + "<|end|>\n",
        "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n",
        "<|bot|>\n",
        "<|endoftext|>",
    ),
    "the last turn ends otherwise": family(
        "<|start|>bot<|channel|>final<|text|>{{ m.content }}"
        + CALLS
        + "{{ '<|return|>' if loop.last else '<|end|>' }}",
        OTHER,
        "<|start|>bot",
    ),
    "no token ends a turn": family(
        "<|bot|>\n{{ m.content }}" + CALLS, "<|{{ m.role }}|>\n{{ m.content }}", "<|bot|>"
    ),
    "no header is asked for after a result": family(
        "<|start|>bot<|text|>{{ m.content }}" + CALLS + "<|end|>",
        OTHER,
        "{% if messages[-1].role != 'tool' %}<|start|>bot<|text|>{% endif %}",
    ),
    "an empty thought": family(
        "<|im_start|>bot\n{% if loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
        "{% endif %}{{ m.content }}" + CALLS + "<|im_end|>\n",
        CHATML,
        "<|im_start|>bot\n",
    ),
    "a header that starts a thought": family(
        "<|im_start|>bot\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}{% endif %}"
        "</think>{{ m.content }}" + CALLS + "<|im_end|>\n",
        CHATML,
        "<|im_start|>bot\n<think>\n",
    ),
    "a header in words, ending in a space": family(
        "BOT: {{ m.content }}" + CALLS + "</s>", "{{ m.role | upper }}: {{ m.content }} ", "BOT: "
    ),
    "a header that nobody asked for": family(
        "<|bot|>{{ m.content }}" + CALLS + "<|end|>", "<|{{ m.role }}|>{{ m.content }}<|end|>", ""
    ),
    "ends only between turns": family(
        "<|im_start|>bot\n{{ m.content }}" + CALLS + "{{ '' if loop.last else '<|im_end|>\n' }}",
        CHATML,
        "<|im_start|>bot\n",
    ),
    "calls of earlier turns left out": family(
        "<|im_start|>bot\n{{ m.content }}{% if loop.last %}" + CALLS + "{% endif %}<|im_end|>\n",
        CHATML,
        "<|im_start|>bot\n",
    ),
    "calls and results left out": family(
        "{% if not m.tool_calls %}<|im_start|>bot\n{{ m.content }}<|im_end|>\n{% endif %}",
        "{% if m.role != 'tool' %}" + CHATML + "{% endif %}",
        "<|im_start|>bot\n",
    ),
    "results as JSON": family(
        "<|im_start|>bot\n{{ m.content }}" + CALLS + "<|im_end|>\n",
        "<|im_start|>{{ m.role }}\n{{ m.content | tojson }}<|im_end|>\n",
        "<|im_start|>bot\n",
    ),
    "functions known by name": family(
        "<|im_start|>bot\n{{ m.content }}{% for c in m.tool_calls or [] %}{% if c.function.name in "
        "['weather', 'time'] %}<|call|>{{ c.function.name }} {{ c.function.arguments | tojson }}"
        "{% endif %}{% endfor %}<|im_end|>\n",
        CHATML,
        "<|im_start|>bot\n",
    ),
    "line breaks become one": family(
        "<|im_start|>bot\n{{ m.content.replace('\n\n', '\n') }}" + CALLS + "<|im_end|>\n",
        CHATML,
        "<|im_start|>bot\n",
    ),
    "marks that begin in the header": family(
        "<|im_start|>{% generation %}bot\n{{ m.content }}" + CALLS + "<|im_end|>\n"
        "{% endgeneration %}",
        CHATML,
        "<|im_start|>bot\n",
    ),
}


@cache
def speaker(name: str) -> tuple[Any, list[str]]:
    """A tokenizer with the template of that family, or with that template; its special tokens."""
    template = FAMILIES.get(name, name)
    tokenizer, special = tokenizer_for(template)
    tokenizer.chat_template = template
    return tokenizer, special


def made(name: str, conversations: Sequence[Conversation], config: TokenizeConfig) -> list[Made]:
    rows: Any = [ConversationRow("1", c.messages, c.tools) for c in conversations]  # pyright: ignore
    results = tokenize_conversations(tokenization(speaker(name)[0], config), rows)
    return [
        Made(refused=found.reason, detail=found.detail)
        if isinstance(found, MalformedRow)
        else Made(
            found.tokens.ids,
            found.tokens.mask,
            frozenset(name for name, value in vars(found.findings).items() if value),
        )
        for found in results
    ]


def trained(name: str, *messages: dict[str, Any], **settings: Any) -> list[str]:
    """The stretches of text that are trained on; `TOOL` is there where a message calls."""
    tools = (TOOL,) if any(message.get("tool_calls") for message in messages) else None
    config = TokenizeConfig(10**6, 10**6, **settings)
    (found,) = made(name, [Conversation("", messages, tools)], config)
    assert not found.refused, found.detail
    tokenizer, _ = speaker(name)
    runs = groupby(zip(found.ids, found.mask, strict=True), key=lambda token: token[1])
    return [
        tokenizer.decode([token for token, _ in run], skip_special_tokens=False)
        for is_trained, run in runs
        if is_trained
    ]


def told(name: str, *messages: dict[str, Any], **settings: Any) -> frozenset[str]:
    config = TokenizeConfig(10**6, 10**6, **settings)
    (found,) = made(name, [Conversation("", messages)], config)
    return found.told or frozenset([found.refused] if found.refused else [])


@pytest.mark.parametrize("mode", [TrainOn.answer, TrainOn.all_turns])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_oracle_finds_nothing_wrong(name: str, mode: TrainOn) -> None:
    oracle = Oracle(*speaker(name))
    config = TokenizeConfig(10**6, 10**6, train_on=mode)
    judged = 0
    for conversation, found in zip(CASES, made(name, CASES, config), strict=True):
        roles = enumerate(message["role"] for message in conversation.messages)
        turns = [index for index, role in roles if role == "assistant"]
        wanted = turns if mode == TrainOn.all_turns else turns[-1:]
        verdict = oracle.judge(conversation, wanted, found)
        assert not verdict.wrong, (conversation.name, found)
        judged += not verdict.no_oracle and not found.refused
    assert judged > len(CASES) / 2


ASK = (user("Is it?"), said("Yes."))
AGAIN = (*ASK, user("Sure?"), said("No."))
ROUND = (user("Rain?"), called(CALL), result("sunny"), said("It is sunny there."))
WRITTEN = '<|call|>weather{"city": "Zürich", "days": 2}<|/call|>'


def test_all_tokens_that_end_a_turn_are_trained_on_whatever_kind_of_turn_it_is() -> None:
    assert trained("two tokens end a turn", *ASK) == ["Yes.<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"]
    assert chat_format(speaker("two tokens end a turn")[0]).last == "<|END_OF_TURN_TOKEN|>"
    both = trained("calls end in one token less", *ROUND, train_on=TrainOn.all_turns)
    assert both == [
        f"{WRITTEN}<|END_OF_TURN_TOKEN|>",
        "It is sunny there.<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    ]


def test_a_call_ends_before_its_result_which_may_open_with_the_same_name() -> None:
    named = family(
        "<|start|>bot<|text|>{{ m.content }}" + CALLS + "<|end|>",
        OTHER.replace("m.role", "loop.previtem.tool_calls[0].function.name if m.name else m.role"),
        "<|start|>bot<|text|>",
    )
    found = trained(named, *ROUND, train_on=TrainOn.all_turns)
    assert found == [f"{WRITTEN}<|end|>", "It is sunny there.<|end|>"]


def test_a_header_is_read_too_where_it_is_not_asked_for() -> None:
    name = "no header is asked for after a result"
    found = trained(name, *ROUND, train_on=TrainOn.all_turns)
    assert found == [f"{WRITTEN}<|end|>", "It is sunny there.<|end|>"]


def test_a_call_is_trained_on_that_is_written_only_before_its_result() -> None:
    followed = "{% if not loop.last %}" + CALLS + "{% endif %}"
    named = family("<|bot|>{{ m.content }}" + followed + "<|end|>", OTHER, "<|bot|>")
    spoken = (ROUND[0], called(CALL, text="I look."), *ROUND[2:])
    found = trained(named, *spoken, train_on=TrainOn.all_turns)
    assert found == [f"I look.{WRITTEN}<|end|>", "It is sunny there.<|end|>"]


def test_words_of_a_call_that_are_written_only_after_its_result_cost_the_row() -> None:
    late = family(
        "<|bot|>{{ m.content if not m.tool_calls or loop.last }}" + CALLS + "<|end|>",
        "<|{{ m.role }}|>{{ m.content }}<|end|>"
        "{{ loop.previtem.content if loop.previtem and m.role == 'tool' }}",
        "<|bot|>",
    )
    spoken = (ROUND[0], called(CALL, text="I look."), *ROUND[2:])
    config = TokenizeConfig(10**6, 10**6, train_on=TrainOn.all_turns)
    (found,) = made(late, [Conversation("", spoken, (TOOL,))], config)
    assert found.refused == "assistant turn not found in the rendered text"
    assert found.detail.startswith("message 2: ")


@pytest.mark.parametrize("city", ['a "city"', 'it\'s "one"', "a\x07bell", "Zürich\n2"])
def test_a_call_is_trained_on_whose_lists_the_template_writes_as_python_does(city: str) -> None:
    items = "{% for n, v in c.function.arguments.items() %}<{{ n }}={{ v }}>{% endfor %}"
    python = CALLS.replace("{{ c.function.arguments | tojson }}", items)
    name = family("<|bot|>{{ m.content }}" + python + "<|end|>", OTHER, "<|bot|>")
    call = called({"name": "weather", "arguments": {"cities": [city, 2]}})
    written = f"<|call|>weather<cities={[city, 2]}><|/call|><|end|>"
    assert trained(name, ROUND[0], call) == [written]


def test_turns_end_alike_with_reasoning_and_calls_and_without() -> None:
    name = "the document ends in a token of its own"
    assert trained(name, *ASK) == ["Yes.<|end|>"]
    assert trained(name, ASK[0], said("Yes.", reasoning_content="Hm."))[-1] == "Hm.Yes.<|end|>"
    assert trained(name, *ROUND[:2]) == [f"{WRITTEN}<|end|>"]


def test_a_turn_in_the_midst_may_end_otherwise_than_the_last() -> None:
    found = trained("the last turn ends otherwise", *AGAIN, train_on=TrainOn.all_turns)

    head = "<|channel|>final<|text|>"
    assert found == [f"{head}Yes.<|end|>", f"{head}No.<|return|>"]


def test_an_end_that_the_template_does_not_write_can_be_named() -> None:
    name, every = "no token ends a turn", TrainOn.all_turns
    assert "unended" in told(name, *AGAIN)
    assert trained(name, *AGAIN, train_on=every) == ["\nYes.", "\nNo."]

    ended = trained(name, *AGAIN, train_on=every, end_of_turn="<|bot|>")

    assert ended == ["\nYes.", "\nNo.<|bot|>"]
    assert "unended" not in told(name, *ASK, end_of_turn="<|bot|>")
    with pytest.raises(ValueError, match="no special token"):
        trained(name, *ASK, end_of_turn="<|nobody|>")


def test_a_named_end_is_trained_on_where_it_opens_the_next_turn() -> None:
    template = family("<|bot|>{{ m.content }}", "<|user|>{{ m.content }}", "<|bot|>")
    found = trained(template, *AGAIN, train_on=TrainOn.all_turns, end_of_turn="<|user|>")
    assert found == ["Yes.<|user|>", "No.<|user|>"]


def test_what_the_template_inserts_before_the_words_is_trained_on_or_read() -> None:
    thought = "<think>\n\n</think>\n\n"
    assert trained("an empty thought", *ASK) == [f"{thought}Yes.<|im_end|>"]
    assert trained("an empty thought", *ASK, inserted=Inserted.read) == ["Yes.<|im_end|>"]
    assert "rewritten" not in told("an empty thought", *ASK)
    assert "rewritten" in told("an empty thought", *ASK, inserted=Inserted.read)
    reasoned = said("Yes.", reasoning_content="Hm.")
    whole = ["<think>\nHm.\n</think>\n\nYes.<|im_end|>"]
    for inserted in Inserted:
        assert trained("an empty thought", ASK[0], reasoned, inserted=inserted) == whole


def test_a_thought_is_trained_on_though_the_question_reads_otherwise_once_it_is_answered() -> None:
    hinted = family(
        "<|im_start|>bot\n<think>\n{{ m.reasoning_content }}\n</think>\n\n"
        "{{ m.content }}<|im_end|>\n",
        "<|im_start|>{{ m.role }}\n{{ m.content }}{{ ' Be brief.' if loop.last }}<|im_end|>\n",
        "<|im_start|>bot\n",
    )
    thought = said("Yes.", reasoning_content="Hm.")
    assert trained(hinted, ASK[0], thought, *AGAIN[2:], train_on=TrainOn.all_turns) == [
        "<think>\nHm.\n</think>\n\nYes.<|im_end|>",
        "<think>\n\n</think>\n\nNo.<|im_end|>",
    ]


def test_reasoning_after_a_header_that_starts_a_thought_is_trained_on() -> None:
    name, reasoned = "a header that starts a thought", said("Yes.", reasoning_content="Hm.")

    assert trained(name, ASK[0], reasoned) == ["Hm.</think>Yes.<|im_end|>"]
    assert "rewritten" in told(name, *ASK)


def test_one_word_after_a_header_that_ends_in_a_space_is_trained_on() -> None:
    name = "a header in words, ending in a space"
    (found,) = trained(name, user("Rain?"), said("is"))
    assert found.strip() == "is</s>"


def test_lost_calls_and_messages_are_counted_or_cost_the_row() -> None:
    assert "calls_lost" in told("calls of earlier turns left out", *ROUND)
    both = told("calls and results left out", *ROUND)
    assert {"calls_lost", "messages_lost"} <= both
    for name in ("calls of earlier turns left out", "calls and results left out"):
        assert told(name, *ROUND, lost=Lost.dropped) == {"template leaves out a message"}
        assert not told(name, *ASK, lost=Lost.dropped)
    assert told("calls and results left out", *ROUND[:2]) == {
        "assistant turn not found in the rendered text"
    }


def test_reasoning_that_the_template_leaves_out_is_told() -> None:
    reasoned = said("Yes.", reasoning_content="Hm.")
    assert told("results as JSON", ASK[0], reasoned) == {"reasoning_lost"}


FIRST, GOOD, BAD = user("One?"), (said("good"), user("go on")), (said("bad"), user("hm"))


def as_pair(config: TokenizeConfig, last: str = "fine") -> tuple[Any, TokenizedPair]:
    tokenizer, _ = speaker("results as JSON")
    sides: Any = ((*GOOD, said("fine")), (*BAD, said(last)))
    row = PreferenceRow("1", (FIRST,), *sides)  # pyright: ignore[reportArgumentType]
    (pair,) = tokenize_pairs(tokenization(tokenizer, config), [row])
    assert isinstance(pair, TokenizedPair), pair
    return tokenizer, pair


def masked(tokenizer: Any, tokens: Any) -> str:
    ids = [token for token, flag in zip(tokens.ids, tokens.mask, strict=True) if flag]
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_a_pair_that_parts_early_is_trained_on_every_turn_in_which_its_sides_differ() -> None:
    tokenizer, pair = as_pair(TokenizeConfig(10**6, 10**6), last="worse")

    assert masked(tokenizer, pair.chosen) == "good<|im_end|>fine<|im_end|>"
    assert masked(tokenizer, pair.rejected) == "bad<|im_end|>worse<|im_end|>"
    assert pair.findings.several_turns


def test_a_turn_that_both_sides_share_is_not_trained_on() -> None:
    tokenizer, pair = as_pair(TokenizeConfig(10**6, 10**6))

    assert masked(tokenizer, pair.chosen) == "good<|im_end|>"
    assert masked(tokenizer, pair.rejected) == "bad<|im_end|>"


def test_the_last_turn_alone_can_be_asked_for() -> None:
    config = TokenizeConfig(10**6, 10**6, train_on=TrainOn.last_turn)
    tokenizer, pair = as_pair(config, last="worse")

    assert masked(tokenizer, pair.chosen) == "fine<|im_end|>"
    assert masked(tokenizer, pair.rejected) == "worse<|im_end|>"
    assert not pair.findings.several_turns
