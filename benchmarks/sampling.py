"""Tokens drawn per CPU second: slots, transformers' `generate`, and a full recompute.

    python -m benchmarks.sampling            one thread; medians of five turns

The model is the arithmetic experiment's Llama (225k parameters) with random weights; 128 prompts of
10 to 20 tokens, 8 completions each of 24 tokens at temperature 1, none of which ends early.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from steps.generation.engine import Request
from steps.generation.slots import SlotEngine

VOCABULARY, PROMPTS, COMPLETIONS, NEW_TOKENS, TURNS = 34, 128, 8, 24, 5

Ids = tuple[int, ...]


def arithmetic_model() -> PreTrainedModel:
    """As `init_model` makes it by default; without an end token."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def in_slots(model: PreTrainedModel, prompts: list[Ids], slots: int) -> int:
    requests = [
        Request(str(row), k, ids, NEW_TOKENS)
        for row, ids in enumerate(prompts)
        for k in range(COMPLETIONS)
    ]
    return sum(len(done.ids) for done in SlotEngine(model, "", slots).sample(requests, ""))


@torch.no_grad()
def by_generate(model: PreTrainedModel, prompts: list[Ids], batch: int) -> int:
    settings = GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=True, temperature=1.0, top_k=0, pad_token_id=0
    )
    drawn = 0
    for ids, mask in _padded([ids for ids in prompts for _ in range(COMPLETIONS)], batch):
        output = model.generate(  # pyright: ignore[reportCallIssue]
            input_ids=ids, attention_mask=mask, generation_config=settings
        )
        drawn += output[:, ids.shape[1] :].numel()
    return drawn


@torch.no_grad()
def by_full_recompute(model: PreTrainedModel, prompts: list[Ids], batch: int) -> int:
    """Without a cache: each token takes a forward over all tokens before it."""
    drawn = 0
    for ids, mask in _padded(prompts, batch):
        for _ in range(NEW_TOKENS):
            positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
            logits = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=False,
                logits_to_keep=1,
            ).logits[:, 0]
            tokens = torch.multinomial(logits.softmax(dim=-1), 1)
            ids, mask = torch.cat([ids, tokens], 1), torch.cat([mask, torch.ones_like(tokens)], 1)
            drawn += len(tokens)
    return drawn


def _padded(prompts: list[Ids], batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        longest = max(map(len, part))
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in part])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in part])
        yield ids, mask


def main() -> None:
    torch.set_num_threads(1)
    model, draw = arithmetic_model(), random.Random(0)
    prompts = [
        tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(10, 20)))
        for _ in range(PROMPTS)
    ]
    ways: dict[str, Callable[[], int]] = {
        "full recompute, one row": lambda: by_full_recompute(model, prompts[:4], 1),
        "full recompute, batch 64": lambda: by_full_recompute(model, prompts, 64),
        **{f"generate, batch {n}": lambda n=n: by_generate(model, prompts, n) for n in (64, 512)},
        **{f"{n} slots": lambda n=n: in_slots(model, prompts, n) for n in (64, 256, 512)},
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):  # in turns, as other work on the machine comes and goes
        for name, way in ways.items():
            start = time.process_time()
            drawn = way()
            speeds[name].append(drawn / (time.process_time() - start))
    for name, found in speeds.items():
        print(f"{name:26} {statistics.median(found):10,.0f} tokens per CPU second")


if __name__ == "__main__":
    main()
