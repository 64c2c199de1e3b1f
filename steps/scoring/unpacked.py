"""Scoring without packs: the model's own forward of each prompt and response alone.

This is for models that can read neither packs nor padded batches (heads of more than one matrix,
rotations that depend on the longest sequence). It replaces no part of the model, and there are no
other responses and no padding to attend to. Each response takes a forward of its own, which reads
the prompt again. Where the rotation depends on the sequence's length, it also reads the last scored
token, which predicts nothing, so that the length is that of the whole sequence.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from steps.models.positions import forget_lengths, turns_by_length
from steps.scoring.architectures.images import inputs_of
from steps.scoring.architectures.routing import Routing
from steps.scoring.head import gaps_of, with_hits, with_normalisers
from steps.scoring.packing import Pack, ResponseSpan

if TYPE_CHECKING:
    from steps.data.images.images_of_rows import ImageOfRow


def unpacked_logps(
    model: PreTrainedModel,
    pack: Pack,
    routing: Routing | None = None,
    aligned: bool = False,
    hits: bool = False,
    normalised: bool = False,
) -> Tensor:
    """Log-probabilities [S] of the pack's scored tokens; with `aligned`, minus log Σ_v p(v)²; with
    `hits` beside them, [S, 2] (see `head.with_hits`); `normalised`: see `head.with_normalisers`.

    Gradients are recorded if autograd is on. Dropout is on if the model is in training mode.
    """
    parts = []
    for logits, targets in unpacked_logits(model, pack, routing):
        if normalised:
            parts.append(with_normalisers(logits.clone(), targets))
            continue
        logps = target_logps(logits, targets)
        if aligned:
            logps = logps - (2 * logits.log_softmax(dim=-1)).logsumexp(dim=-1)
        parts.append(with_hits(logps, gaps_of(logits, targets)) if hits else logps)
    return torch.cat(parts)


def target_logps(logits: Tensor, targets: Tensor) -> Tensor:
    """The log-probabilities [n] of `targets` [n] by `logits` [n, V]."""
    return -functional.cross_entropy(logits, targets, reduction="none")


def unpacked_logits(
    model: PreTrainedModel, pack: Pack, routing: Routing | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each response of the pack the logits of its scored tokens, [n, V] in float32 or float64,
    and these tokens [n]. Gradients and dropout as in `unpacked_logps`."""
    keeps_some = "logits_to_keep" in inspect.signature(model.forward).parameters
    images = pack.images or ((),) * len(pack.responses)
    for span, own in zip(pack.responses, images, strict=True):
        targets = pack.targets[span.scored_start : span.scored_stop]
        yield _logits(model, pack, span, keeps_some, routing, own), targets


def _logits(
    model: PreTrainedModel,
    pack: Pack,
    span: ResponseSpan,
    keeps_some: bool,
    routing: Routing | None,
    images: "Sequence[ImageOfRow]",
) -> Tensor:
    prompt, own = slice(span.prompt_start, span.prompt_stop), slice(span.start, span.stop)
    scored = slice(span.scored_start, span.scored_stop)
    counted = torch.cat([pack.input_ids[prompt], pack.input_ids[own]])
    last = pack.targets[scored][-1:] if turns_by_length(model) else counted[:0]
    input_ids = torch.cat([counted, last])[None]
    prompt_tokens = span.prompt_stop - span.prompt_start
    first = max(prompt_tokens - 1, 0) if keeps_some else 0
    options = {"logits_to_keep": input_ids.shape[1] - first} if keeps_some else {}
    asked = {} if routing is None else {"output_router_logits": True}
    seen = inputs_of(model, images, input_ids)
    forget_lengths(model)
    outputs = model(input_ids=input_ids, use_cache=False, **asked, **options, **seen)
    if routing is not None:
        weights = torch.cat([torch.ones_like(counted), torch.zeros_like(last)])
        routing.see(outputs, weights)
    logits = outputs.logits[0]

    places = (pack.predictors[scored] - span.start).clamp(min=-1) + prompt_tokens - first
    logits = _rows(logits, places)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _rows(logits: Tensor, places: Tensor) -> Tensor:
    """The rows `places`, which ascend; not copied if they follow one another."""
    if len(places) and int(places[-1] - places[0]) + 1 == len(places):
        return logits.narrow(0, int(places[0]), len(places))
    return logits.index_select(0, places)
