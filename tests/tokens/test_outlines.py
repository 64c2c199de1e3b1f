"""Rows that are not rendered one by one have the text, spans and ids of those that are."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from chat_families import families
from jinja2 import Environment

from benchmarks.chat_templates import tokenizer_for
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message
from steps.data.templates.flow import looked_for_in_contents
from steps.data.tokens.config import TokenizeConfig
from steps.data.tokens.encoding import encoder
from steps.data.tokens.rendering import Chat, render
from steps.data.tokens.tokenizing import Tokenization, tokenization

TEXTS = (
    "Yes.", "Is it so?", " and so on ", "two\n\nlines", "\u3000wide\u00a0", "</think>\n\nYes.",
    "<think>no</think>yes", "a<|im_end|>b", "<|im_end", "|>", "TemperOutline0x", "Slot0x1c1x", "",
    " ", "東京 é ½", "'s", "{{ x }}", "<s>", "[INST]", "user", "tool_call", "\x1c", "\u200b",
)  # fmt: skip
ORDERS = ("ua", "sua", "uaua", "suauaua", "uta", "aua", "uaa", "sua")
ROLES = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}


def chats(count: int) -> Iterator[Chat]:
    drawn = random.Random(0)
    for _ in range(count):
        order = drawn.choice(ORDERS)
        plain = drawn.random() < 0.7
        texts = ["".join(drawn.choices(TEXTS[:4] if plain else TEXTS, k=2)) for _ in order]
        messages = [
            Message(role=ROLES[letter], content=text)
            for letter, text in zip(order, texts, strict=True)
        ]
        if drawn.random() < 0.1:
            messages[-1]["reasoning_content"] = "Thought."
        yield Chat(tuple(messages))


def outcome(work: Any) -> Any:
    try:
        return work()
    except MalformedRow as problem:
        return str(problem)


def is_equal(asked: Tokenization, chat: Chat) -> bool:
    """Whether an outline of a chat gives what the template gives, or refuses it as that does."""
    finder = asked.finder
    turns = [n for n, message in enumerate(chat.messages) if message["role"] == "assistant"]
    chat, turns = chat.until(turns[-1] + 1), turns[-1:] if len(chat.messages) % 2 else turns
    start = turns[0]
    headers = outcome(lambda: {start: render(finder.format, chat.until(start), header=True)})
    if isinstance(headers, str):
        return True
    filled = outcome(lambda: asked.outlines.render(chat, turns, [start], lambda: headers))
    return filled == outcome(lambda: finder.render(chat, turns, headers))


def differences(tokenizer: Any, count: int) -> tuple[list[Chat], int]:
    """The chats of which an outline and the template differ, and how many had an outline."""
    asked = tokenization(tokenizer, TokenizeConfig())
    differ = [chat for chat in chats(count) if not is_equal(asked, chat)]
    filled = [outline.filled for outline in asked.outlines._known.values() if outline is not None]
    return differ, sum(filled)


@pytest.mark.parametrize("name", ["chatml_generation", "gemma", "llama3", "mistral", "qwen3"])
def test_outlines_are_the_templates_own_text_and_spans(name: str) -> None:
    differ, filled = differences(families()[name].tokenizer, 300)
    assert not differ
    assert (filled > 20) == (name not in ("mistral", "qwen3"))  # these look at contents


LOOP = "{% for m in messages %}{{ m.role }}: BODY<|im_end|>{% endfor %}"


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.content }}",
        "{{ m['content'] | trim }}",
        "{{ '\n' + m.get('content').strip() ~ '\n' }}",
        "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}{{ c.text }}"
        "{% endfor %}{% endif %}",
        "{% set c = m.content %}{% if c and not loop.last %}{{ c }}{% else %}{{ c or 'no' }}"
        "{% endif %}",
    ],
)
def test_a_template_that_only_writes_contents_is_recognised(body: str) -> None:
    assert looked_for(body) == frozenset()
    differ, filled = differences(with_body(body), 100)
    assert not differ
    assert filled > 8


def with_body(body: str) -> Any:
    tokenizer, _ = tokenizer_for(LOOP)
    tokenizer.chat_template = LOOP.replace("BODY", body)
    return tokenizer


def looked_for(body: str) -> Any:
    return looked_for_in_contents(Environment().parse(LOOP.replace("BODY", body)))


@pytest.mark.parametrize(
    "body",
    [
        "{% if m.content | length > 9 %}long{% endif %}{{ m.content }}",
        "{% if loop.first and m.content | length > 9 %}long{% endif %}{{ m.content }}",
        "{{ m.content if loop.first else m.content | upper }}",
        "{% set n.c = m.content %}{% if n.c %}some{% endif %}{{ m.content }}",
        "{% if m.content == m.role %}same{% endif %}{{ m.content }}",
        "{% if m.content + 'b' == 'ab' %}same{% endif %}{{ m.content }}",
        "{{ m.content | upper }}",
        "{{ m.content[:9] }}",
        "{{ m.content.split('x')[0] }}",
        "{{ m.content if m.content < 'k' else '' }}",
        "{{ (m.content + ' ') | trim }}",
        "{{ ('<' | e) + m.content }}",
        "{{ ('<' | list | map('safe') | first) + m.content }}",
        "{{ m | tojson }}",
        "{{ m.values() | join }}",
        "{% for c in m.content %}{{ c }}{% endfor %}",
        "{% set n = namespace(c=m.content) %}{{ n.c | length }}",
        "{% macro f(x) %}{{ x | length }}{% endmacro %}{{ f(m.content) }}",
        "{% macro f() %}{{ messages[0].content | length }}{% endmacro %}{{ f() }}",
        "{% set c = 'a' %}{% if loop.first %}{% set c = m.content %}{% endif %}{{ c | length }}",
        "{{ {'a': 1}[m.content] }}",
        "{{ messages | map(attribute='content') | join }}",
        "{% if loop.changed(m.content) %}new{% endif %}{{ m.content }}",
        "{% if m == messages[0] %}same{% endif %}{{ m.content }}",
        "{% set x %}{{ m.content }}{% endset %}{{ x | length }}",
        "{% filter upper %}{{ m.content }}{% endfilter %}",
        "{{ '%s' % m.content }}{{ m.content * 2 }}",
        "{{ m[m.content] }}{{ range(m.content | int) | list }}",
        "{{ strftime_now('%d') }}{{ m.content }}{{ [1, 2] | random }}",
    ],
)
def test_a_template_that_looks_at_contents_is_not_taken_for_one_that_writes_them(body: str) -> None:
    assert looked_for(body) is None


def test_a_template_that_looks_for_a_text_is_exact_where_no_content_has_it() -> None:
    body = "{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}{% else %}"
    body += "{{ m.content }}{% endif %}{% if m.content.startswith('no') %}!{% endif %}"
    body += "{% if 'user' == m.content %}?{% endif %}"
    assert looked_for(body) == {"</think>", "no", "user"}
    differ, filled = differences(with_body(body), 300)
    assert not differ
    assert filled > 20


@pytest.mark.parametrize(
    "asked", ["'x' in m.content", "m.content.endswith('on ')", "m.content.startswith('Temper')"]
)
def test_neither_white_space_at_an_end_nor_a_stand_in_decides_for_a_content(asked: str) -> None:
    differ, _ = differences(with_body(f"{{{{ m.content }}}}{{% if {asked} %}}!{{% endif %}}"), 300)
    assert not differ


@pytest.mark.parametrize("name", ["chatml", "llama3"])  # GPT-2's pattern, and Llama 3's
def test_words_have_the_ids_that_they_have_in_the_text(name: str) -> None:
    tokens = encoder(families()[name].tokenizer)
    assert tokens._words is not None
    drawn = random.Random(0)
    parts = (
        *TEXTS, " ", "  ", "\n", " \n ", "\t", "\r\n", "\x85", "\u2028", "a", "1", ".", "\u0301",
        "don't", "f(x_1)", "<b", "'", "23", "\u037e", "\u0338",
    )  # fmt: skip
    texts = ["".join(drawn.choices(parts, k=9)) for _ in range(2000)]
    assert tokens._words.ids(texts) == tokens.whole_ids(texts)
