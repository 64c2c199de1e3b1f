"""The engine in this process: continuous batching of completions in slots, with a cache.

    requests ─ by prompt ─► prefill ─► start ─► decode ─► draw ─► finished
                            a pack of  a slot   a token    ▲ │
                            prompts    each     of each    └─┘

A prompt is read once for all of its completions. The next completion takes a free slot at once, so
every forward reads a token of as many sequences as possible. On a CPU, ids and logps have the same
bits whatever the slot, the order and the other sequences: rows of matrix products are padded as in
packs, and ``cache`` explains why attention does not depend on other sequences.

A completion that waits for a reply gives its slot away and keeps its keys and values. Behind the
reply it takes any slot again, and reads the reply a token a forward, beside what others draw.

Weights are the model's own, used where they lie, so an engine beside a trainer needs no copy. No
key outlives a call of `sample`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from steps.generation.cache import Decode, KeyValueCache, Prefill, Turn, attending
from steps.generation.cuda_graphs import Replays
from steps.generation.engine import (
    Finish,
    Finished,
    Place,
    Replies,
    Request,
    StaleWeightsError,
    require_weights,
)
from steps.generation.in_process import OwnModel
from steps.generation.running import Line, Running
from steps.models.folders import evaluating
from steps.scoring.architectures.batching import backbone
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.head import output_head
from steps.scoring.packing import make_pack
from steps.shared.matmul import of_changing_rows
from steps.shared.padded_rows import padded_rows

_REPLAYING = {"cuda"}
"""Kinds of devices that replay forwards; see ``cuda_graphs``."""


class SlotEngine(OwnModel):
    """Samples with a model of this process.

    Args:
        model: the model, on its device. Until the last completion has been taken, only this engine
            can call it, because its attention is replaced.
        weights: the digest of the model's weights.
        slots: the most sequences of one forward.
        tokens_per_forward: the most prompt tokens of one forward; a longer prompt is read alone.

    replays: whether a GPU replays the forwards of this model.
    """

    def __init__(
        self, model: PreTrainedModel, weights: str, slots: int = 64, tokens_per_forward: int = 2048
    ) -> None:
        super().__init__(model, weights)
        self.slots = slots
        self.tokens_per_forward = tokens_per_forward
        self.replays = model.device.type in _REPLAYING

    def sample(self, requests: Iterable[Request], weights: str) -> Iterator[Finished]:
        """As `Engine.sample`.

        Raises:
            FloatingPointError: the logits of a row, which the message names, are not finite.
            StaleWeightsError: also if the weights are replaced before the last completion is taken.
        """
        return self._write(requests, weights, None)

    def converse(
        self, requests: Iterable[Request], weights: str, replies: Replies
    ) -> Iterator[Finished]:
        """As `Converses.converse`; at most twice as many are held as there are slots."""
        return self._write(requests, weights, replies)

    def _write(
        self, requests: Iterable[Request], weights: str, replies: Replies | None
    ) -> Iterator[Finished]:
        require_weights(self, weights)
        with (
            evaluating(self.model),
            attending(self.model),
            closing(_Writing(self, list(requests), replies)) as writing,
        ):
            for finished in writing.completions():
                yield finished
                if self._weights != weights:
                    raise StaleWeightsError(f"the weights {weights!r} were replaced while sampling")


@dataclass(eq=False)
class _Prompt:
    """A prompt that has been read: keys and values, logits [V] of its next token, and the requests
    that wait for it."""

    keys_and_values: Tensor
    logits: Tensor
    waiting: deque[Request]


class _Writing:
    """The state of one call of `sample`: waiting requests, read prompts, and running sequences."""

    def __init__(
        self, engine: SlotEngine, requests: Sequence[Request], replies: Replies | None
    ) -> None:
        self.engine, self.model, self.replies = engine, engine.model, replies
        self.head = output_head(engine.model)
        by_prompt = groupby(requests, lambda request: (request.row, request.prompt_ids))
        self.unread = deque(deque(group) for _, group in by_prompt)
        self.read: deque[_Prompt] = deque()
        self.waiting: dict[Place, tuple[Line, Tensor]] = {}
        self.replied: deque[tuple[Line, Tensor]] = deque()
        self.slots = min(engine.slots, len(requests))
        self.running = Running(self.slots, requests)
        self.cache = KeyValueCache(padded_rows(self.slots), self.model.device)
        replays = Replays(self.cache, self._logits, self.slots) if engine.replays else None
        self.replays = replays

    def close(self) -> None:
        """Free what replays: a graph must not wait for the collection of garbage, which may happen
        while another one is recorded."""
        self.replays = None

    def completions(self) -> Iterator[Finished]:
        while True:
            yield from self._start()
            self.cache.move(*self.running.close_gaps())
            if not self.running.lines and not self.waiting:
                return
            yield from self._take_replies()
            if self.running.lines:
                slots = torch.arange(len(self.running.lines))
                yield from self._draw(slots, self._decode())

    def _draw(self, slots: Tensor, logits: Tensor) -> Iterator[Finished]:
        """Draw a token in each of `slots`; frees those in which a turn ends with it."""
        ended = self.running.draw(slots, logits)
        for slot, line in zip(ended, self.running.take_out(ended) if ended else (), strict=True):
            if self.replies is not None and line.is_stopped:
                kept = self.cache.get(slot, len(line.request.prompt_ids) + len(line.ids) - 1)
                self.waiting[line.ended.place] = line, kept
                self.replies.ask(line.ended)
            else:
                finish = Finish.stop if line.is_stopped else Finish.length
                yield line.finished(finish, self.engine.weights)

    def _start(self) -> Iterator[Finished]:
        """Gives every free slot to a completion: to one that goes on behind a reply, or to a new
        one, with its first token."""
        while self.replied and self.running.count < self.slots:
            line, keys_and_values = self.replied.popleft()
            self._put([(line, keys_and_values)])
        while begun := self._begin(self._free()):
            slots = self._put([(line, prompt.keys_and_values) for line, prompt in begun])
            logits = torch.stack([prompt.logits for _, prompt in begun])
            yield from self._draw(torch.tensor(slots), logits)

    def _free(self) -> int:
        """How many may begin: there are so many slots, and twice as many are held at most."""
        running = self.running.count
        return min(self.slots - running, 2 * self.slots - running - len(self.waiting))

    def _put(self, begun: Sequence[tuple[Line, Tensor]]) -> list[int]:
        """Into the first free slots, with the keys and values of each; these slots."""
        slots = self.running.put([line for line, _ in begun])
        placed = zip(slots, (read for _, read in begun), strict=True)
        for _, group in groupby(placed, lambda pair: id(pair[1])):
            of_one = list(group)
            self.cache.put(of_one[0][1], [slot for slot, _ in of_one])
        return slots

    def _take_replies(self) -> Iterator[Finished]:
        """Takes the replies that are there; where nothing else can be done, waits for one."""
        given = self.replies.given(not self.running.lines) if self.replies and self.waiting else ()
        for place, reply in given:
            line, keys_and_values = self.waiting.pop(place)
            if isinstance(reply, Finish):
                yield line.finished(reply, self.engine.weights)
            elif line.is_cut_by(reply):
                yield line.finished(Finish.length, self.engine.weights)
            else:
                line.unread.extend(reply)
                self.replied.append((line, keys_and_values))

    def _begin(self, count: int) -> list[tuple[Line, _Prompt]]:
        """The next `count` completions, or as many as there are left."""
        begun = []
        while len(begun) < count and (self.read or self.unread):
            if not self.read:
                self._prefill()
            prompt = self.read[0]
            begun.append((Line(prompt.waiting.popleft()), prompt))
            if not prompt.waiting:
                self.read.popleft()
        return begun

    def _prefill(self) -> None:
        """Read prompts up to the budget of tokens, but at least one."""
        taken: list[deque[Request]] = []
        tokens = 0
        while self.unread:
            tokens += len(self.unread[0][0].prompt_ids)
            if taken and tokens > self.engine.tokens_per_forward:
                break
            taken.append(self.unread.popleft())
        pack = make_pack([_as_group(requests[0]) for requests in taken]).to(self.model.device)
        turn = Prefill(pack)
        logits = self._logits(pack.input_ids, pack.position_ids, turn, pack.predictors)
        kept = turn.keys_and_values
        for requests, span, row in zip(taken, pack.responses, logits, strict=True):
            prompt = kept[..., span.prompt_start : span.prompt_stop, :]
            self.read.append(_Prompt(prompt, row, requests))

    def _decode(self) -> Tensor:
        """Read the last token of each sequence; return the logits [N, V] of the next."""
        running, device = len(self.running.lines), self.model.device
        if self.replays:
            inputs = self.running.last_tokens(self.replays.rows(running))
            if (logits := self.replays.logits(*inputs)) is not None:
                return logits[:running]
            self.engine.replays, self.replays = not self.replays.refused, None
        ids, places = self.running.last_tokens(padded_rows(running))
        turn = Decode(self.cache, places)
        return self._logits(ids.to(device), places.to(device), turn)[:running]

    @torch.no_grad()
    def _logits(
        self, ids: Tensor, positions: Tensor, turn: Turn, rows: Tensor | None = None
    ) -> Tensor:
        """The logits after each token of one forward, or after those of `rows`."""
        with of_changing_rows():
            hidden = backbone(self.model)(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, turn=turn
            ).last_hidden_state[0]
            if rows is None:
                return self.head.logits(hidden)
            hidden = hidden.index_select(0, rows)
            padded = functional.pad(hidden, (0, 0, 0, padded_rows(len(rows)) - len(rows)))
            return self.head.logits(padded)[: len(rows)]


def _as_group(request: Request) -> TokenGroup:
    """A prompt as a group for a pack, with a response of one token that is never read."""
    return TokenGroup(request.row, "", request.prompt_ids, (TokenResponse((0,)),))
