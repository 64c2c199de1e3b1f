"""Completions: the same for the same seed, ended where the model ends them."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from tiny_models import SPECIAL, VOCABULARY, model_folder, word_tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pipeline.dag.canonical import identity
from steps.data.rows.jsonl import read_json_lines
from steps.data.rows.parquet import write_rows
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import PROMPTS as PROMPT_ROWS
from steps.data.rows.tables import to_record
from steps.data.tokens.rendering import Chat
from steps.data.tokens.tokenizing import tokenization, tokenize_prompts
from steps.generation.cache import KeyValueCache
from steps.generation.config import SamplingConfig
from steps.generation.engine import Finish, Finished
from steps.generation.sampling import decoded, end_tokens, sample
from steps.kinds import Model, Prompts
from steps.models.folders import load_model
from steps.sample_completions import sample_completions

PROMPTS = [
    Chat(({"role": "user", "content": content},))
    for content in ("w5", "w9 w8 w7 w6", "w1 w2", "w3")
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer()


@pytest.fixture(scope="module")
def prompts(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    return ids_of(tokenizer, PROMPTS)


def ids_of(tokenizer: PreTrainedTokenizerFast, chats: list[Chat]) -> list[list[int]]:
    found = tokenize_prompts(tokenization(tokenizer), chats)
    return [ids for ids in found if not isinstance(ids, MalformedRow)]


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    return load_model(model_folder(tmp_path))


@torch.no_grad()
def greedy_by_hand(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: Chat, steps: int
) -> str:
    ids = tokenizer(f"<user> {prompt.messages[0]['content']} <end> <assistant>")["input_ids"]
    assert isinstance(ids, list)
    written: list[int] = []
    for _ in range(steps):
        token = int(model(input_ids=torch.tensor([ids + written])).logits[0, -1].argmax())
        if token == tokenizer.eos_token_id:
            break
        written.append(token)
    text = tokenizer.decode(written, skip_special_tokens=True)
    assert isinstance(text, str)
    return text


def asked(prompts: list[list[int]]) -> list[tuple[str, list[int]]]:
    return [(f"row {number}", ids) for number, ids in enumerate(prompts)]


def said(tokenizer: PreTrainedTokenizerFast, drawn: list[list[Finished]]) -> list[list[str]]:
    return [[decoded(tokenizer, one.ids) for one in completions] for completions in drawn]


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_greedy_texts_are_the_most_likely_tokens_in_any_number_of_slots(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    slots: int,
    prompts: list[list[int]],
) -> None:
    drawn = sample(model, tokenizer, asked(prompts), SamplingConfig(10, slots=slots))
    assert said(tokenizer, drawn) == [
        [greedy_by_hand(model, tokenizer, prompt, 10)] for prompt in PROMPTS
    ]


def test_two_rows_of_one_id_are_refused_as_they_would_be_given_the_same_draws(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]
) -> None:
    with pytest.raises(ValueError, match="one row id"):
        sample(model, tokenizer, [("a", prompts[0]), ("a", prompts[1])], SamplingConfig(1))


def test_a_text_ends_before_the_end_token_and_holds_no_special_token(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]
) -> None:
    config = SamplingConfig(40, temperature=2.0, num_completions=20)
    drawn = [one for row in sample(model, tokenizer, asked(prompts), config) for one in row]
    assert {one.finish for one in drawn} == {Finish.stop, Finish.length}
    for one in drawn:
        assert (one.ids[-1] == tokenizer.eos_token_id) == (one.finish is Finish.stop)
    texts = [decoded(tokenizer, one.ids) for one in drawn]
    assert not any(special in text for text in texts for special in SPECIAL)
    lengths = {len(text.split()) for text in texts}
    assert min(lengths) < 20  # some ended early
    assert len(lengths) > 5


def test_a_completion_ends_where_the_template_ends_an_answer_though_no_file_names_that_token(
    model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    """As with a base model whose end of sequence is another token than that of ChatML's turns."""
    base = word_tokenizer()
    base.eos_token = "w0"
    end = base.convert_tokens_to_ids("w0")
    assert isinstance(end, int)
    model.generation_config.eos_token_id = 5  # pyright: ignore[reportOptionalMemberAccess]
    taught = base.convert_tokens_to_ids("<end>")
    assert isinstance(taught, int)
    assert end_tokens(model, base) == sorted([5, end, taught])
    config = SamplingConfig(40, temperature=2.0, num_completions=20)
    drawn = [one for row in sample(model, base, asked(prompts), config) for one in row]
    assert any(one.ids[-1] == taught and one.finish is Finish.stop for one in drawn)
    assert not any(taught in one.ids[:-1] for one in drawn)
    base.chat_template = None
    assert end_tokens(model, base) == sorted([5, end])


def test_draws_follow_the_model_s_distribution(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]
) -> None:
    """Truncation to the likeliest tokens, which many samplers do by default, would show here."""
    with torch.no_grad():  # flat enough for every token to be expected
        model.get_parameter("model.norm.weight").mul_(0.3)
        logits = model(input_ids=torch.tensor(prompts[:1])).logits[0, -1].double()
    draws, temperature = 20_000, 0.7
    config = SamplingConfig(1, temperature, num_completions=draws, slots=4096)
    [drawn] = sample(model, tokenizer, asked(prompts[:1]), config)
    expected = (logits / temperature).softmax(dim=-1)
    counts = torch.bincount(torch.tensor([one.ids[0] for one in drawn]), minlength=VOCABULARY)
    assert float(expected.min()) * draws > 5
    assert chisquare(counts, expected * draws).pvalue > 0.001
    for one in drawn[:50]:
        assert one.logps[0] == pytest.approx(float(expected[one.ids[0]].log()), abs=1e-5)


def test_nothing_of_the_decoding_recipe_of_the_model_is_used_and_all_of_it_is_kept(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]
) -> None:
    config = SamplingConfig(12)
    plain = sample(model, tokenizer, asked(prompts), config)
    recipe = model.generation_config
    assert recipe is not None
    recipe.repetition_penalty = 5.0
    recipe.min_new_tokens = 11
    assert sample(model, tokenizer, asked(prompts), config) == plain
    assert model.generation_config is recipe


@pytest.mark.parametrize("left_out", [{}, {"top_p": 0.9, "top_k": 20}])
def test_slots_that_go_wrong_late_in_a_completion_are_not_used(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    left_out: dict[str, Any],
) -> None:
    config = SamplingConfig(max_new_tokens=30, temperature=0.5, seed=1, **left_out)
    right = said(tokenizer, sample(model, tokenizer, asked(prompts), config))
    resize = KeyValueCache.resize

    def forgetful(cache: KeyValueCache, tokens: int) -> None:
        resize(cache, tokens)
        if tokens > max(map(len, prompts)) + 18:  # behind what is tried at the start
            for layer in cache.blocks[0]:
                layer.zero_()

    monkeypatch.setattr(KeyValueCache, "resize", forgetful)
    with pytest.warns(UserWarning, match="written alone, which is much slower: in slots, Llama"):
        found = sample(model, tokenizer, asked(prompts), config)
    assert said(tokenizer, found) == right


def test_what_is_left_out_is_part_of_a_key_and_nothing_left_out_is_not() -> None:
    every = [{}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}]
    keys = [str(identity(SamplingConfig(temperature=0.6, **one), "config")) for one in every]  # type: ignore[arg-type]
    assert len(set(keys)) == len(keys)
    assert not any(name in keys[0] for name in ("top_p", "top_k", "min_p"))
    for name, key in zip(("top_p", "top_k", "min_p"), keys[1:], strict=True):
        assert name in key


def test_a_nucleus_is_drawn_from_and_logps_are_within_it(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]
) -> None:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(prompts[:1])).logits[0, -1].double()
    probabilities, ids = (logits / 0.8).softmax(dim=-1).sort(descending=True)
    stays = probabilities.cumsum(dim=-1) - probabilities < 0.7
    share = float(probabilities[stays].sum())
    config = SamplingConfig(1, 0.8, num_completions=2000, slots=500, top_p=0.7)
    [drawn] = sample(model, tokenizer, asked(prompts[:1]), config)
    assert {one.ids[0] for one in drawn} == set(ids[stays].tolist())
    for one in drawn[:50]:
        expected = float(probabilities[ids == one.ids[0]].log() - math.log(share))
        assert one.logps[0] == pytest.approx(expected, abs=1e-5)


# --- the step ------------------------------------------------------------------------------------


def test_tools_and_template_arguments_of_a_prompt_are_given_to_the_model(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    asked = ({"role": "user", "content": "w5"},)
    chat = Chat(asked, tools=({"name": "w1"},), template_kwargs={"style": "w2 "})  # pyright: ignore

    [ids] = ids_of(tokenizer, [chat])

    assert tokenizer.convert_ids_to_tokens(ids) == [
        "<tool>",
        "w1",
        "w2",
        "<user>",
        "w5",
        "<end>",
        "<assistant>",
    ]


def test_a_prompt_that_is_too_long_or_that_the_template_refuses_costs_only_itself(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    rows = [
        PromptRow("good", ({"role": "user", "content": "w5"},), tools=({"name": "w1"},)),
        PromptRow("bad", ({"role": "user", "content": "w5"},), template_kwargs={"tokenize": True}),
        PromptRow("long", ({"role": "user", "content": "w5 w6"},), tools=({"name": "w1"},)),
    ]
    write_rows(tmp_path / "prompts/prompts-00000.parquet", PROMPT_ROWS, map(to_record, rows))
    folder = model_folder(tmp_path / "model")
    tokenizer.save_pretrained(folder)
    out = SimpleNamespace(
        path=tmp_path,
        scratch=tmp_path / "scratch",
        stopping=False,
        progress=lambda done, total, metrics=None: None,
    )

    metrics = sample_completions.function(
        out,  # pyright: ignore[reportArgumentType]
        Prompts(tmp_path / "prompts", "load_prompts", ""),
        Model(folder, "import_model", ""),
        SamplingConfig(max_prompt_length=6),
    )

    (record,) = read_json_lines(tmp_path / "completions.jsonl")
    assert record["row"] == "good"
    assert record["tools"] == [{"name": "w1"}]
    assert (metrics or {})["dropped_by_reason"] == {
        "prompt too long": {"count": 1, "rows": ["long"]},
        "template refuses the conversation": {"count": 1, "rows": ["bad"]},
    }
