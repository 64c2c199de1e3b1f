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
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from steps.generation.cache import Decode, KeyValueCache, Prefill, Turn, attending
from steps.generation.draws import draw
from steps.generation.engine import (
    Finish,
    Finished,
    Place,
    Replies,
    Request,
    StaleWeightsError,
    require_weights,
)
from steps.generation.in_process import OwnModel, Written
from steps.models.folders import evaluating
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.head import output_head
from steps.scoring.packing import make_pack, padded_rows


class SlotEngine(OwnModel):
    """Samples with a model of this process.

    Args:
        model: the model, on its device. Until the last completion has been taken, only this engine
            can call it, because its attention is replaced.
        weights: the digest of the model's weights.
        slots: the most sequences of one forward.
        tokens_per_forward: the most prompt tokens of one forward; a longer prompt is read alone.
    """

    def __init__(
        self, model: PreTrainedModel, weights: str, slots: int = 64, tokens_per_forward: int = 2048
    ) -> None:
        super().__init__(model, weights)
        self.slots = slots
        self.tokens_per_forward = tokens_per_forward

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
        with evaluating(self.model), attending(self.model):
            for finished in _Writing(self, list(requests), replies).completions():
                yield finished
                if self._weights != weights:
                    raise StaleWeightsError(f"the weights {weights!r} were replaced while sampling")


@dataclass(eq=False)
class _Sequence(Written):
    """A completion that is being written.

    unread: of a reply, the tokens that the model has still to read.
    """

    unread: deque[int] = field(default_factory=deque)

    @property
    def position(self) -> int:
        """The position of the last token in the sequence."""
        return len(self.request.prompt_ids) + len(self.ids) - 1

    def extend(self, token: int, logp: float) -> bool:
        """Takes a drawn token, or in its place the next one of a reply; whether a turn ends."""
        if self.unread:  # behind a reply there is room for a draw
            self.add_read(self.unread.popleft())
            return False
        self.add_drawn(token, logp)
        request = self.request
        return token in request.stop_ids or len(self.ids) == request.max_new_tokens


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
        by_prompt = groupby(requests, lambda request: (request.row, request.prompt_ids))
        self.unread = deque(deque(group) for _, group in by_prompt)
        self.read: deque[_Prompt] = deque()
        self.running: list[_Sequence | None] = []
        self.waiting: dict[Place, tuple[_Sequence, Tensor]] = {}
        self.replied: deque[tuple[_Sequence, Tensor]] = deque()
        self.slots = min(engine.slots, len(requests))
        self.cache = KeyValueCache(padded_rows(self.slots))

    def completions(self) -> Iterator[Finished]:
        while True:
            yield from self._start()
            self._close_gaps()
            if not self.running and not self.waiting:
                return
            yield from self._take_replies()
            if not self.running:
                continue
            running = [sequence for sequence in self.running if sequence]
            for sequence in self._extend(running, self._decode(running)):
                slot = self.running.index(sequence)
                if self._is_asked(sequence):
                    self._wait(sequence, self.cache.get(slot, sequence.position))
                else:
                    yield self._finished(sequence)
                self.running[slot] = None

    def _start(self) -> Iterator[Finished]:
        """Gives every free slot to a completion: to one that goes on behind a reply, or to a new
        one, with its first token."""
        self._go_on()
        while begun := self._begin(self._free()):
            sequences = [sequence for sequence, _ in begun]
            ended = set(self._extend(sequences, torch.stack([p.logits for _, p in begun])))
            for sequence, prompt in begun:
                if sequence in ended and self._is_asked(sequence):
                    self._wait(sequence, prompt.keys_and_values)
                elif sequence in ended:
                    yield self._finished(sequence)
            going = [(sequence, prompt) for sequence, prompt in begun if sequence not in ended]
            for prompt, group in groupby(going, lambda started: started[1]):
                self._put([sequence for sequence, _ in group], prompt.keys_and_values)

    def _free(self) -> int:
        """How many may begin: there are so many slots, and twice as many are held at most."""
        running = sum(map(bool, self.running))
        return min(self.slots - running, 2 * self.slots - running - len(self.waiting))

    def _put(self, sequences: Sequence[_Sequence], keys_and_values: Tensor) -> None:
        """Into the first free slots, with what has been read of each."""
        gaps = [slot for slot, sequence in enumerate(self.running) if sequence is None]
        free = iter([*gaps, *range(len(self.running), self.slots)])
        slots = dict(zip(free, sequences, strict=False))
        self.cache.put(keys_and_values, list(slots))
        for slot, sequence in slots.items():
            self.running[slot : slot + 1] = [sequence]

    def _is_asked(self, sequence: _Sequence) -> bool:
        """Whether the end of a turn is to be replied to, and not the end of a completion."""
        return self.replies is not None and sequence.is_stopped

    def _wait(self, sequence: _Sequence, keys_and_values: Tensor) -> None:
        """Waits for a reply, with the keys and values of all tokens but the last."""
        assert self.replies is not None
        ended = sequence.ended
        self.waiting[ended.place] = sequence, keys_and_values
        self.replies.ask(ended)

    def _take_replies(self) -> Iterator[Finished]:
        """Takes the replies that are there; where nothing else can be done, waits for one."""
        given = self.replies.given(not self.running) if self.replies and self.waiting else ()
        for place, reply in given:
            sequence, keys_and_values = self.waiting.pop(place)
            if isinstance(reply, Finish):
                yield sequence.finished(reply, self.engine.weights)
            elif sequence.is_cut_by(reply):
                yield sequence.finished(Finish.length, self.engine.weights)
            else:
                sequence.unread.extend(reply)
                self.replied.append((sequence, keys_and_values))

    def _go_on(self) -> None:
        """Gives free slots to those that have been replied to."""
        while self.replied and sum(map(bool, self.running)) < self.slots:
            sequence, keys_and_values = self.replied.popleft()
            self._put([sequence], keys_and_values)

    def _begin(self, count: int) -> list[tuple[_Sequence, _Prompt]]:
        """The next `count` completions, or as many as there are left."""
        begun = []
        while len(begun) < count and (self.read or self.unread):
            if not self.read:
                self._prefill()
            prompt = self.read[0]
            begun.append((_Sequence(prompt.waiting.popleft()), prompt))
            if not prompt.waiting:
                self.read.popleft()
        return begun

    def _close_gaps(self) -> None:
        """Move the last sequences into free slots when no requests are left."""
        taken = [slot for slot, sequence in enumerate(self.running) if sequence]
        gaps = sorted(set(range(len(taken))) - set(taken))
        last = [slot for slot in taken if slot >= len(taken)]
        self.cache.move(last, gaps)
        for source, target in zip(last, gaps, strict=True):
            self.running[target] = self.running[source]
        del self.running[len(taken) :]

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

    def _decode(self, running: Sequence[_Sequence]) -> Tensor:
        """Read the last token of each sequence; return the logits [N, V] of the next."""
        device = self.model.device
        missing = padded_rows(len(running)) - len(running)
        positions = [sequence.position for sequence in running]
        ids = torch.tensor([sequence.ids[-1] for sequence in running] + [0] * missing)
        places = torch.tensor(positions + [0] * missing)
        turn = Decode(self.cache, places)
        return self._logits(ids.to(device), places.to(device), turn)[: len(running)]

    @torch.no_grad()
    def _logits(
        self, ids: Tensor, positions: Tensor, turn: Turn, rows: Tensor | None = None
    ) -> Tensor:
        """The logits after each token of one forward, or after those of `rows`."""
        base: Any = self.model.base_model
        hidden = base(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, turn=turn
        ).last_hidden_state[0]
        if rows is None:
            return output_head(self.model).logits(hidden)
        hidden = hidden.index_select(0, rows)
        padded = functional.pad(hidden, (0, 0, 0, padded_rows(len(rows)) - len(rows)))
        return output_head(self.model).logits(padded)[: len(rows)]

    def _extend(self, sequences: Sequence[_Sequence], logits: Tensor) -> list[_Sequence]:
        """Draw a token for each sequence; return those that end with it."""
        device = logits.device
        heats = torch.tensor([s.request.temperature for s in sequences], dtype=torch.float64)
        numbers = torch.tensor([next(s.numbers) for s in sequences], dtype=torch.float64)
        tokens, logps = draw(logits, heats.to(device), numbers.to(device))
        drawn = zip(sequences, tokens.tolist(), logps.tolist(), strict=True)
        return [sequence for sequence, token, logp in drawn if sequence.extend(token, logp)]

    def _finished(self, sequence: _Sequence) -> Finished:
        finish = Finish.stop if sequence.is_stopped else Finish.length
        return sequence.finished(finish, self.engine.weights)


def _as_group(request: Request) -> TokenGroup:
    """A prompt as a group for a pack, with a response of one token that is never read."""
    return TokenGroup(request.row, "", request.prompt_ids, (TokenResponse((0,)),))
