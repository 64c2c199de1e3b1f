"""Log-probabilities of tokens, in the form of OpenAI's completions.

They are the model's own, at temperature 1, however the answer was drawn. One forward over prompt
and answer gives all of them, so a token's value does not depend on whether the model wrote it.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from steps.models.folders import evaluating
from steps.models.positions import forget_lengths
from steps.serving.replies import Speaker


def logprobs_of(speaker: Speaker, ids: Sequence[int], begins: int, top: int) -> dict[str, Any]:
    """OpenAI's object for the tokens from ``begins`` on; the first token of all has no value.

    Args:
        top: how many of the likeliest tokens to name in each place, beside the token itself.
    """
    places = range(begins, len(ids))
    texts = [_text_after(speaker, ids[max(0, at - 1) : at], ids[at]) for at in places]
    logits = _logits(speaker, ids)
    scores = [_scores(speaker, ids, at, logits, top) if at else (None, None) for at in places]
    return {
        "tokens": texts,
        "token_logprobs": [own for own, _ in scores],
        "top_logprobs": [likeliest for _, likeliest in scores] if top else None,
        "text_offset": [*accumulate(map(len, texts), initial=0)][:-1],
    }


def text_of(speaker: Speaker, ids: Sequence[int]) -> str:
    """The text of tokens, with special tokens."""
    return speaker.tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )  # type: ignore[return-value]


@torch.no_grad()
def _logits(speaker: Speaker, ids: Sequence[int]) -> torch.Tensor:
    """What the model expects after each token: [tokens, vocabulary]."""
    forget_lengths(speaker.model)
    with evaluating(speaker.model):
        read = torch.tensor([ids], device=speaker.model.device)
        return speaker.model(input_ids=read, use_cache=False).logits[0]


def _scores(
    speaker: Speaker, ids: Sequence[int], at: int, logits: torch.Tensor, top: int
) -> tuple[float, dict[str, float]]:
    """The log-probability of the token in a place, and those of the likeliest there, by text."""
    logps = logits[at - 1].float().log_softmax(-1)
    best = logps.topk(min(top, len(logps))).indices.tolist()
    likeliest: dict[str, float] = {}
    for token in [*best, ids[at]]:  # of tokens with equal texts, the likeliest counts
        likeliest.setdefault(_text_after(speaker, ids[at - 1 : at], token), logps[token].item())
    return logps[ids[at]].item(), likeliest


def _text_after(speaker: Speaker, before: Sequence[int], token: int) -> str:
    """What a token adds to the text; some tokenizers drop the space before a text's first word."""
    return text_of(speaker, [*before, token])[len(text_of(speaker, before)) :]
