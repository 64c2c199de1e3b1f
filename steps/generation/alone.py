"""The slow engine, for models that do not support slots (state spaces, hybrids, remote code).

Transformers' own `generate`, with the model's own cache, generates each completion separately;
where that is not right, a forward of all before it gives each token. Only the draw of tokens is
this module's, so a completion depends only on its request, as in any engine.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from steps.generation.cache import attending
from steps.generation.draws import cuts_of, draw, uniforms
from steps.generation.engine import Finish, Finished, Replies, Request, require_weights
from steps.generation.in_process import OwnModel, Written
from steps.models.folders import evaluating, own_attention
from steps.models.positions import forget_lengths

Hear = Callable[[int, Tensor], None]
"""Called with each token that is drawn, and the logits [V] from which it was drawn."""


class AloneEngine(OwnModel):
    """Samples with a model of this process, one completion at a time.

    Args:
        has_cache: whether the model keeps what it has read; else it reads all for each token.
    """

    def __init__(self, model: PreTrainedModel, weights: str, has_cache: bool = True) -> None:
        super().__init__(model, weights)
        self.has_cache = has_cache

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

    def write(self, request: Request, hear: Hear) -> None:
        """Draw one completion. `hear` gets each token at once, and may raise an error to end it."""
        self._write_turn(Written(request), hear)

    def _write(self, request: Request, replies: Replies | None = None) -> Finished:
        written = Written(request)
        while True:
            self._write_turn(written)
            if not written.is_stopped:
                return written.finished(Finish.length, self._weights)
            if replies is None:
                return written.finished(Finish.stop, self._weights)
            replies.ask(written.ended)
            ((_, reply),) = replies.given(wait=True)
            if isinstance(reply, Finish):
                return written.finished(reply, self._weights)
            if written.is_cut_by(reply):
                return written.finished(Finish.length, self._weights)
            for token in reply:
                written.add_read(token)

    def _write_turn(self, written: Written, hear: Hear | None = None) -> None:
        """Draws until a stop token, or until there is no room."""
        request = written.request
        before = torch.tensor([[*request.prompt_ids, *written.ids]], device=self.model.device)
        ends = list(request.stop_ids)
        settings = GenerationConfig(
            max_new_tokens=request.max_new_tokens - len(written.ids),
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,  # never read: there is one row
        )
        forget_lengths(self.model)
        draws = TokenDraws(request, len(written.ids), written.add_drawn, hear)
        own = attending(self.model, own_attention(self.model))
        recipe = _decoding_recipe(self.model, settings)
        with torch.no_grad(), evaluating(self.model), own, recipe:
            if not self.has_cache:
                self._read_all_for_each(written, before, draws)
                return
            self.model.generate(  # pyright: ignore[reportCallIssue]
                input_ids=before,
                attention_mask=torch.ones_like(before),
                generation_config=settings,
                logits_processor=LogitsProcessorList([draws]),
            )

    def _read_all_for_each(self, written: Written, before: Tensor, draws: "TokenDraws") -> None:
        """Draws a turn by the model's plain forward: `generate` may give other positions to it
        (RoBERTa's begin behind the number of the padding token)."""
        while len(written.ids) < written.request.max_new_tokens:
            logits = self.model(input_ids=before, use_cache=False).logits[:, -1].float()
            drawn = draws(before, logits).argmax(dim=-1, keepdim=True)
            if written.is_stopped:
                return
            before = torch.cat([before, drawn], dim=1)


class TokenDraws(LogitsProcessor):
    """Draws each token of one completion, and masks all other tokens for greedy `generate`.

    Args:
        start: how many tokens there are already; token number p takes the p-th number.
        on_drawn: called with each token and its log-probability.
    """

    def __init__(
        self,
        request: Request,
        start: int,
        on_drawn: Callable[[int, float], None],
        hear: Hear | None = None,
    ) -> None:
        self._on_drawn, self._hear = on_drawn, hear
        self._numbers = islice(uniforms(request.seed, request.row, request.k), start, None)
        self._temperature = torch.tensor([request.temperature], dtype=torch.float64)
        self._cuts = cuts_of([request]) if request.is_truncated else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore
        number = torch.tensor([next(self._numbers)], dtype=torch.float64)
        device = scores.device
        cuts = None if self._cuts is None else self._cuts.to(device)
        token, logp = draw(scores, self._temperature.to(device), number.to(device), cuts)
        self._on_drawn(int(token), float(logp))
        if self._hear is not None:
            self._hear(int(token), scores[0])
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
