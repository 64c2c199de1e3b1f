"""Completions of prompts, through transformers' own `generate`.

Prompts are taken in batches, each of which has random numbers of its own. So it does not matter who
draws which: several ranks, each with the whole model on its device, take turns.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from steps.generation.config import SamplingConfig
from steps.training.metrics import OnProgress, ignore_progress
from steps.training.models import evaluating
from steps.training.ranks import ALONE, Ranks

Item = TypeVar("Item")


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    on_progress: OnProgress = ignore_progress,
    ranks: Ranks = ALONE,
) -> list[list[str]]:
    """`config.num_completions` texts for each prompt (token ids), in the order of `prompts`.

    A text ends before the first end-of-turn token and holds no special tokens. What is drawn
    follows from the seed, the prompts and the config; nothing of the decoding recipe a model may
    ship with is applied, and the caller's random state is left as it was. Progress counts
    completions. Ranks share the batches, and each gets all texts.
    """
    drawn = sample_ids(model, tokenizer, prompts, config, on_progress, ranks)
    return [[_text(tokenizer, ids) for ids in completions] for completions in drawn]


def sample_ids(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    on_progress: OnProgress = ignore_progress,
    ranks: Ranks = ALONE,
) -> list[list[list[int]]]:
    """As `sample`, the tokens: up to and with the first end-of-turn token, if there is one."""
    ends = _end_tokens(model, tokenizer)
    settings = _settings(config, ends)
    queue = [ids for ids in prompts for _ in range(config.num_completions)]
    batches = _slices(queue, config.batch_size)
    own: list[list[list[int]]] = []
    with evaluating(model), _decoding_recipe(model, settings), torch.random.fork_rng():
        for number in range(ranks.index, len(batches), ranks.count):
            torch.manual_seed(_seed(config.seed, number))
            own.append([_to_end(ids, ends) for ids in _generate(model, batches[number], settings)])
            done = (number + ranks.count) * config.batch_size
            on_progress(min(done, len(queue)), len(queue), {})
    turns = zip_longest(*ranks.gather(own), fillvalue=[])
    drawn = [ids for turn in turns for batch in turn for ids in batch]
    return _slices(drawn, config.num_completions)


def pad_left(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, int64 [B, L] each, so that all sequences end together."""
    shape = (len(sequences), max(map(len, sequences)))
    input_ids = torch.zeros(shape, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.int64)
    for row, ids in enumerate(sequences):
        input_ids[row, shape[1] - len(ids) :] = torch.tensor(ids)
        mask[row, shape[1] - len(ids) :] = 1
    return input_ids, mask


def _generate(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], settings: GenerationConfig
) -> list[list[int]]:
    """The new tokens after each prompt, with whatever follows an end token."""
    input_ids, mask = pad_left(prompts)
    output: Tensor = model.generate(  # pyright: ignore[reportCallIssue]
        input_ids=input_ids.to(model.device),
        attention_mask=mask.to(model.device),
        generation_config=settings,
    )
    return output[:, input_ids.shape[1] :].tolist()


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokenizer's end-of-sequence token and those the model's generation config names."""
    named = model.generation_config.eos_token_id if model.generation_config else None
    return sorted({*_as_list(named), *_as_list(tokenizer.eos_token_id)})


def _as_list(ids: Any) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def _settings(config: SamplingConfig, ends: list[int]) -> GenerationConfig:
    drawing = {"do_sample": True, "temperature": config.temperature, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(
        max_new_tokens=config.max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,  # never read: a text is cut before it
        **(drawing if config.temperature > 0 else {"do_sample": False}),
    )


@contextmanager
def _decoding_recipe(model: PreTrainedModel, settings: GenerationConfig) -> Iterator[None]:
    """`generate` fills what its settings leave open from the model's recipe: make that ours too."""
    shipped = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = shipped


def _slices(items: list[Item], size: int) -> list[list[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _seed(seed: int, batch: int) -> int:
    return int(np.random.SeedSequence([seed, batch]).generate_state(1, np.uint64)[0])


def _to_end(ids: list[int], ends: list[int]) -> list[int]:
    length = next((place for place, token in enumerate(ids, start=1) if token in ends), len(ids))
    return ids[:length]


def _text(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return cast(str, tokenizer.decode(ids, skip_special_tokens=True))
