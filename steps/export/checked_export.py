"""Compare an exported model with its original, token by token, on answers that the original writes.

The divergence at a token is KL(original‖exported) of the next token, in nats, over the whole
vocabulary. transformers runs an exported folder as it is, quantised or not; llama.cpp runs a GGUF
file, with a cache in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from steps.data.rows.reasons import MalformedRow
from steps.data.tokens.rendering import Chat, load_bare_tokenizer, load_tokenizer
from steps.data.tokens.tokenizing import tokenization, tokenize_prompts
from steps.export.config import ExportCheckConfig
from steps.generation.config import SamplingConfig
from steps.generation.sampling import decoded, sample
from steps.models.folders import evaluating, load_model
from steps.models.workplace import OnProgress

_SECTION = "## Compared with the original\n"


@dataclass(frozen=True)
class Reading:
    """How a model reads.

    Attributes:
        logits: of the next token after each of some tokens, [tokens, vocabulary], on the host.
        tokens: those of a text; special tokens in it count as such, and none are added.
    """

    logits: Callable[[Sequence[int]], Tensor]
    tokens: Callable[[str], list[int]]


def compare(
    model: Path, exported: Path, config: ExportCheckConfig, on_progress: OnProgress
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The metrics of an export, and a record for each token.

    Raises:
        ValueError: the two have other numbers of tokens, a prompt is refused, or the exported
            model's logits are not numbers.
    """
    texts, expected, own = _written(model, config)
    records, same_tokens = list[dict[str, Any]](), 0
    tokenizer = load_bare_tokenizer(model)
    with _opened(exported, max(map(len, texts))) as reading:
        for number, (ids, logits) in enumerate(zip(texts, expected, strict=True)):
            text = decoded(tokenizer, ids, special=True)
            same_tokens += reading.tokens(text) == own(text)
            kl, firsts = divergence(logits, reading.logits(ids))
            for place, (nats, (first, found)) in enumerate(zip(kl, firsts, strict=True)):
                at = {"text": number, "place": place, "token": ids[place], "kl": nats}
                records.append({**at, "first": first, "first_exported": found})
            on_progress(number + 1, len(texts), {})
    nats = [record["kl"] for record in records]
    same = sum(record["first"] == record["first_exported"] for record in records)
    metrics = {
        "kl_per_token": sum(nats) / len(nats),
        "kl_max": max(nats),
        "same_first": same / len(nats),
        "same_tokens": same_tokens / len(texts),
        "tokens": len(nats),
    }
    return metrics, records


def divergence(expected: Tensor, found: Tensor) -> tuple[list[float], list[tuple[int, int]]]:
    """KL(expected‖found) at each token in nats, and the likeliest next tokens of both.

    Args:
        expected, found: logits [tokens, vocabulary].
    """
    if expected.shape != found.shape:
        told = f"the exported model has {found.shape[-1]} tokens, the original "
        raise ValueError(f"{told}{expected.shape[-1]}")
    if found.isnan().any():
        raise ValueError("the exported model's logits are not numbers")
    p, q = expected.double().log_softmax(-1), found.double().log_softmax(-1)
    terms = torch.where(p > -torch.inf, p.exp() * (p - q), 0.0)
    firsts = zip(p.argmax(-1).tolist(), q.argmax(-1).tolist(), strict=True)
    return terms.sum(-1).clamp(min=0).tolist(), list(firsts)


def card_with(card: str, name: str, metrics: dict[str, float]) -> str:
    """The model card of an export, or a short one, with a section that tells the divergence."""
    rows = {
        "divergence per token, mean, in nats": f"{metrics['kl_per_token']:.3g}",
        "divergence per token, largest, in nats": f"{metrics['kl_max']:.3g}",
        "same likeliest next token": f"{metrics['same_first']:.2%}",
        "texts with the same tokens": f"{metrics['same_tokens']:.0%}",
        "tokens compared": f"{metrics['tokens']:,.0f}",
    }
    lines = ["| measure | value |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())]
    return "\n".join([card or f"# {name}\n", _SECTION, *lines, ""])


def _written(
    folder: Path, config: ExportCheckConfig
) -> tuple[list[list[int]], list[Tensor], Callable[[str], list[int]]]:
    """Prompts with the answers of the original, its logits, and its tokens of a text."""
    model = load_model(folder)
    tokenizer = load_bare_tokenizer(folder)
    if tokenizer.chat_template:
        tokenizer = load_tokenizer(folder)
        chats = [Chat(({"role": "user", "content": prompt},)) for prompt in config.prompts]
        rendered = tokenize_prompts(tokenization(tokenizer), chats)
        for ids in rendered:
            if isinstance(ids, MalformedRow):
                raise ValueError(f"the chat template refuses a prompt: {ids}")
        prompts: Any = rendered
    else:
        prompts = [tokenizer(prompt)["input_ids"] for prompt in config.prompts]
    asked = [(str(number), ids) for number, ids in enumerate(prompts)]
    drawing = SamplingConfig(config.tokens, 1.0, seed=config.seed)
    drawn = sample(model, tokenizer, asked, drawing)
    texts = [[*ids, *answer.ids] for ids, (answer,) in zip(prompts, drawn, strict=True)]
    reading = _by_transformers(model, tokenizer)
    return texts, [reading.logits(ids) for ids in texts], reading.tokens


@contextmanager
def _opened(exported: Path, longest: int) -> Iterator[Reading]:
    if files := sorted(exported.glob("*.gguf")):
        with _by_llama_cpp(files[0], longest) as reading:
            yield reading
        return
    if not (exported / "config.json").is_file():
        raise ValueError(f"{exported} has neither a whole model (config.json) nor a GGUF file")
    model = AutoModelForCausalLM.from_pretrained(exported, dtype="auto", local_files_only=True)
    yield _by_transformers(model, load_bare_tokenizer(exported))


def _by_transformers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Reading:
    @torch.no_grad()
    def logits(ids: Sequence[int]) -> Tensor:
        with evaluating(model):
            read = torch.tensor([ids], device=model.device)
            return model(input_ids=read, use_cache=False).logits[0].cpu()

    untyped: Any = tokenizer
    return Reading(logits, lambda text: untyped(text, add_special_tokens=False)["input_ids"])


@contextmanager
def _by_llama_cpp(file: Path, longest: int) -> Iterator[Reading]:
    from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

    size: Any = {"n_ctx": longest, "n_batch": longest, "type_k": 0, "type_v": 0}  # 0: float32
    engine = Llama(str(file), logits_all=True, n_gpu_layers=0, verbose=False, **size)

    def logits(ids: Sequence[int]) -> Tensor:
        engine.reset()
        engine.eval(ids)
        return torch.from_numpy(engine.scores[: len(ids)].copy())

    try:
        yield Reading(logits, lambda text: engine.tokenize(text.encode(), False, special=True))
    finally:
        engine.close()
