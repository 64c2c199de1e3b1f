"""Completions: the same for the same seed, ended where the model ends them."""

from pathlib import Path

import pytest
import torch
from tiny_models import VOCABULARY, model_folder
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from steps.generation.config import SamplingConfig
from steps.generation.sampling import sample
from steps.training.models import load_model

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SPECIAL = ["<user>", "<assistant>", "<end>"]
PROMPTS = [
    [{"role": "user", "content": content}] for content in ("w5", "w9 w8 w7 w6", "w1 w2", "w3")
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = SPECIAL + [f"w{i}" for i in range(VOCABULARY - len(SPECIAL))]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<end>",
        additional_special_tokens=SPECIAL[:2],
        chat_template=TEMPLATE,
    )


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    return load_model(model_folder(tmp_path))


@torch.no_grad()
def greedy_by_hand(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: list[dict], steps: int
) -> str:
    ids = tokenizer(f"<user> {prompt[0]['content']} <end> <assistant>")["input_ids"]
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


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_greedy_texts_are_the_most_likely_tokens_however_batched(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, batch_size: int
) -> None:
    texts = sample(model, tokenizer, PROMPTS, SamplingConfig(10, batch_size=batch_size))
    assert texts == [[greedy_by_hand(model, tokenizer, prompt, 10)] for prompt in PROMPTS]


def test_the_seed_decides_what_is_drawn(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    def draw(seed: int) -> list[list[str]]:
        config = SamplingConfig(12, temperature=1.0, num_completions=3, seed=seed)
        return sample(model, tokenizer, PROMPTS, config)

    torch.manual_seed(1)
    first = draw(0)
    assert torch.initial_seed() == 1  # the caller's generator is untouched
    torch.manual_seed(2)
    assert draw(0) == first
    assert draw(1) != first
    assert [len(texts) for texts in first] == [3] * len(PROMPTS)
    assert len(set(first[0])) > 1


def test_a_text_ends_before_the_end_token_and_holds_no_special_token(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    config = SamplingConfig(40, temperature=2.0, num_completions=20)
    texts = [text for texts in sample(model, tokenizer, PROMPTS, config) for text in texts]
    assert not any(special in text for text in texts for special in SPECIAL)
    lengths = {len(text.split()) for text in texts}
    assert min(lengths) < 20  # some ended early
    assert len(lengths) > 5


def test_draws_follow_the_model_s_distribution(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Truncation to the likeliest tokens, which `generate` does by default, would show here."""
    with torch.no_grad():  # a nearly uniform model
        model.get_parameter("model.norm.weight").mul_(0.01)
    config = SamplingConfig(1, temperature=1.0, num_completions=3000, batch_size=1000)
    [texts] = sample(model, tokenizer, PROMPTS[:1], config)
    words = VOCABULARY - len(SPECIAL)
    assert len(set(texts) - {""}) == words
    assert sum(text == "" for text in texts) / 3000 == pytest.approx(3 / VOCABULARY, abs=0.02)


def test_nothing_of_the_decoding_recipe_of_the_model_is_used_and_all_of_it_is_kept(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    config = SamplingConfig(12)
    plain = sample(model, tokenizer, PROMPTS, config)
    recipe = model.generation_config
    assert recipe is not None
    recipe.repetition_penalty = 5.0
    recipe.min_new_tokens = 11
    assert sample(model, tokenizer, PROMPTS, config) == plain
    assert model.generation_config is recipe


def test_progress_counts_completions(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    reports = []
    config = SamplingConfig(2, temperature=1.0, num_completions=2, batch_size=3)
    sample(model, tokenizer, PROMPTS, config, lambda done, total, _: reports.append((done, total)))
    assert reports == [(3, 8), (6, 8), (8, 8)]


def test_several_greedy_completions_are_refused() -> None:
    with pytest.raises(ValueError, match="num_completions is 4"):
        SamplingConfig(num_completions=4)
