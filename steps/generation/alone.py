"""The slow engine, for models that do not support slots (state spaces, hybrids, remote code).

Transformers' own `generate`, with the model's own cache, generates each completion separately. Only
the draw of tokens is this module's, so a completion depends only on its request, as in any engine.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from steps.generation.cache import attending
from steps.generation.draws import Draft, draw
from steps.generation.engine import Finish, Finished, Replies, Request, require_weights
from steps.generation.weights import replace_weights
from steps.models.folders import evaluating, own_attention
from steps.models.positions import forget_lengths


class AloneEngine:
    """Samples with a model of this process, one completion at a time."""

    def __init__(self, model: PreTrainedModel, weights: str) -> None:
        self.model = model
        self._weights = weights

    @property
    def weights(self) -> str:
        """The digest of the weights that it has."""
        return self._weights

    def sample(self, requests: Iterable[Request], weights: str) -> Iterator[Finished]:
        """As `Engine.sample`."""
        for request in requests:
            require_weights(self, weights)
            yield self._write(request)

    def converse(
        self, requests: Iterable[Request], weights: str, replies: Replies
    ) -> Iterator[Finished]:
        """As `Converses.converse`; behind a reply, all before it is read again."""
        for request in requests:
            require_weights(self, weights)
            yield self._write(request, replies)

    def update_weights(self, source: Path | Mapping[str, Tensor], weights: str) -> None:
        """As `Engine.update_weights`."""
        replace_weights(self.model, source, weights)
        self._weights = weights

    def _write(self, request: Request, replies: Replies | None = None) -> Finished:
        drawing = _Drawing(request)
        while True:
            self._write_turn(request, drawing)
            if drawing.ids[-1] not in request.stop_ids:
                return drawing.finished(Finish.length, self._weights)
            if replies is None:
                return drawing.finished(Finish.stop, self._weights)
            replies.ask(drawing.ended)
            ((_, reply),) = replies.given(wait=True)
            if isinstance(reply, Finish):
                return drawing.finished(reply, self._weights)
            if len(drawing.ids) + len(reply) >= request.max_new_tokens:
                return drawing.finished(Finish.length, self._weights)
            for token in reply:
                next(drawing.numbers)
                drawing.read(token)

    def _write_turn(self, request: Request, drawing: "_Drawing") -> None:
        """Draws until a stop token, or until there is no room."""
        before = torch.tensor([[*request.prompt_ids, *drawing.ids]], device=self.model.device)
        ends = list(request.stop_ids)
        settings = GenerationConfig(
            max_new_tokens=request.max_new_tokens - len(drawing.ids),
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,  # never read: there is one row
        )
        forget_lengths(self.model)
        own = attending(self.model, own_attention(self.model))
        recipe = _decoding_recipe(self.model, settings)
        with torch.no_grad(), evaluating(self.model), own, recipe:
            self.model.generate(  # pyright: ignore[reportCallIssue]
                input_ids=before,
                attention_mask=torch.ones_like(before),
                generation_config=settings,
                logits_processor=LogitsProcessorList([drawing]),
            )


class _Drawing(Draft, LogitsProcessor):
    """Draws each token of one completion, and masks all other tokens for `generate`."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore
        given = self.request.temperature, next(self.numbers)
        heat, number = torch.tensor(given, dtype=torch.float64, device=scores.device).split(1)
        token, logp = draw(scores, heat, number)
        self.take(int(token), float(logp))
        return torch.full_like(scores, -torch.inf).index_fill(1, token, 0.0)


@contextmanager
def _decoding_recipe(model: PreTrainedModel, settings: GenerationConfig) -> Iterator[None]:
    """Replace the model's generation config by `settings`, because `generate` takes unset settings
    from it."""
    shipped = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = shipped
