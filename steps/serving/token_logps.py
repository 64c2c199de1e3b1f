"""Log-probabilities of tokens, in the form of OpenAI's completions.

They are the model's own, at temperature 1, however the answer was drawn. One forward over prompt
and answer gives all of them, so a token's value does not depend on whether the model wrote it.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, repeat
from typing import Any

import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from steps.generation.sampling import decoded
from steps.models.folders import evaluating
from steps.models.positions import forget_lengths
from steps.serving.replies import Speaker

LEAST = -9999.0
"""Stands for the log-probability of what cannot be, as at OpenAI: JSON has no infinity."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}


def logprobs_of(
    speaker: Speaker,
    prompt: Sequence[int],
    written: Sequence[int],
    top: int,
    echoed: str | Sequence[int] | None = None,
    cut: int | None = None,
) -> dict[str, Any]:
    """OpenAI's object for the tokens of an answer; the first token of all has no value.

    Args:
        top: how many of the likeliest tokens to name in each place, beside the token itself.
        echoed: the prompt as given, if the answer's text begins with it.
        cut: the length of what the model wrote, if a stop text ended it.
    """
    ids, begins = [*prompt, *written], len(prompt)
    shares = _shares(speaker, prompt, written)
    offsets = _offsets(shares)
    if cut is not None:
        offsets = [offset for offset in offsets if offset < cut]
    places = range(begins, begins + len(offsets))
    if echoed is not None:
        of_prompt = _shares(speaker, [], prompt, special=not isinstance(echoed, str))
        length = len(echoed if isinstance(echoed, str) else text_of(speaker, echoed))
        before = [min(offset, length) for offset in _offsets(of_prompt)]
        offsets = [*before, *(length + offset for offset in offsets)]
        shares, places = [*of_prompt, *shares], range(len(offsets))
    texts = [_name(speaker, ids[at], share) for at, share in zip(places, shares, strict=False)]
    logits = _logits(speaker, ids)
    scores = [
        _scores(speaker, ids, at, text, logits, top) if at else (None, None)
        for at, text in zip(places, texts, strict=True)
    ]
    return {
        "tokens": texts,
        "token_logprobs": [own for own, _ in scores],
        "top_logprobs": [likeliest for _, likeliest in scores] if top else None,
        "text_offset": offsets,
    }


def _offsets(shares: Sequence[str]) -> list[int]:
    return [*accumulate(map(len, shares), initial=0)][:-1]


def _shares(
    speaker: Speaker, before: Sequence[int], ids: Sequence[int], special: bool = False
) -> list[str]:
    """What each token adds to the text of all; a character is its last token's.

    Tokens are decoded together while later ones can change their text.

    Args:
        special: whether the text has special tokens.
    """
    decode = partial(text_of if special else _plain_text_of, speaker)
    shares: list[str] = []
    run: list[int] = []
    raws: list[bytes] = []
    for at, token in enumerate(ids, 1):
        byte = _byte_of(speaker, token)
        run.append(token)
        raws.append(b"" if before and _byte_of(speaker, before[-1]) else byte)
        if byte and at < len(ids):
            continue
        known = len(decode(before))
        text = decode([*before, *run])[known:]
        if at < len(ids) and (text.endswith("\ufffd") or not decode([token])):
            continue
        parts = partial(lambda before, known, part: decode([*before, *part])[known:], before, known)
        ends = [*_ends(parts, run, raws, text), len(text)]
        shares += [text[start:end] for start, end in pairwise(accumulate([0, *ends], max))]
        before, run, raws = run, [], []
    return shares


def _ends(
    decode: Callable[[list[int]], str], run: list[int], raws: Sequence[bytes], text: str
) -> list[int]:
    """How much of a run's text is there after each of its tokens but the last.

    Bytes side by side are one text or, if they are none, one U+FFFD each: so many of them need not
    be decoded once for each. With other tokens between them, which may be left out of a text, they
    are.
    """
    ends, others = list[int](), next((at for at, raw in enumerate(raws) if raw), len(run))
    while (at := len(ends)) < len(run) - 1:
        raw = b"".join(raws[at:]) if at == others and all(raws[at:-1]) else b""
        begin = max(ends, default=0)
        counts = list(_characters(raw))
        if raw and counts[-1] is not None:
            spelled, lengths = raw.decode(), [count or 0 for count in counts]
        else:
            spelled = "\ufffd" * len(raw)
            lengths = [end if count is None else 0 for end, count in enumerate(counts, 1)]
        if raw and text.startswith(spelled, begin):
            ends += [begin + length for length in lengths]
        else:
            ends.append(_common(decode(run[: at + 1]), text))
    return ends[: len(run) - 1]


def _byte_of(speaker: Speaker, token: int) -> bytes:
    """The byte that a token stands for; empty if it stands for a text."""
    byte = _BYTE.fullmatch(str(speaker.tokenizer.convert_ids_to_tokens(token)))
    return bytes.fromhex(byte[1]) if byte else b""


def _characters(raw: bytes) -> Iterator[int | None]:
    """The number of characters in each beginning of some bytes; ``None`` if it is no text."""
    utf8, count = getincrementaldecoder("utf-8")(), 0
    for at in range(len(raw)):
        try:
            count += len(utf8.decode(raw[at : at + 1]))
        except UnicodeDecodeError:
            yield from repeat(None, len(raw) - at)
            return
        yield None if utf8.getstate()[0] else count


def text_of(speaker: Speaker, ids: Sequence[int]) -> str:
    """The text of tokens, with special tokens."""
    return speaker.tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )  # type: ignore[return-value]


def _common(one: str, other: str) -> int:
    """The length of the beginning that two texts share."""
    return sum(accumulate((a == b for a, b in zip(one, other, strict=False)), min))


def _plain_text_of(speaker: Speaker, ids: Sequence[int]) -> str:
    return decoded(speaker.tokenizer, ids)


@torch.no_grad()
def _logits(speaker: Speaker, ids: Sequence[int]) -> torch.Tensor:
    """What the model expects after each token: [tokens, vocabulary]."""
    forget_lengths(speaker.model)
    with evaluating(speaker.model):
        read = torch.tensor([ids], device=speaker.model.device)
        return speaker.model(input_ids=read, use_cache=False).logits[0]


def _scores(
    speaker: Speaker, ids: Sequence[int], at: int, text: str, logits: torch.Tensor, top: int
) -> tuple[float, dict[str, float]]:
    """The log-probability of the token in a place, and those of the likeliest there, by text."""
    logps = logits[at - 1].float().log_softmax(-1)
    if logps.isnan().any():
        raise FloatingPointError("the model's logits are NaN or infinite, so no token has a logp")
    logps = logps.clamp(min=LEAST)
    likeliest: dict[str, float] = {}
    best = logps.topk(min(top, len(logps))).indices.tolist()
    for token in [*best, ids[at]]:  # of tokens with equal texts, the likeliest counts
        named = text if token == ids[at] else _name_after(speaker, ids[at - 1], token)
        likeliest.setdefault(named, logps[token].item())
    return logps[ids[at]].item(), likeliest


def _name_after(speaker: Speaker, before: int, token: int) -> str:
    """Some tokenizers drop the space before a text's first word."""
    share = text_of(speaker, [before, token])[len(text_of(speaker, [before])) :]
    return _name(speaker, token, share)


def _name(speaker: Speaker, token: int, share: str) -> str:
    """What a token adds to the text. If that is nothing, the token's own text, as a special token
    has it; and OpenAI's `bytes:…` for a part of a character."""
    own = text_of(speaker, [token])
    raw = _bytes_of(speaker, token) if "\ufffd" in own else b""
    try:
        raw.decode()
        return share or own
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{part:02x}" for part in raw)


def _bytes_of(speaker: Speaker, token: int) -> bytes:
    """What a tokenizer of bytes calls a token's bytes; nothing if the token's name is a text."""
    if byte := _byte_of(speaker, token):
        return byte
    name = str(speaker.tokenizer.convert_ids_to_tokens(token))
    return bytes(_BYTE_OF[letter] for letter in name) if set(name) <= set(_BYTE_OF) else b""
