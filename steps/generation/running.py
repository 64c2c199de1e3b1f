"""The sequences in slots. What they draw lies in tables, a row for each slot, until a turn ends: so
a token of any number of sequences takes the same few calls."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional

from steps.generation.draws import draw
from steps.generation.in_process import Written, require_logp

_AHEAD = 32
"""Random numbers that are taken at once, as many as a stream makes at once."""


@dataclass(eq=False)
class Line(Written):
    """A completion in slots. While it runs, the newest part of `ids` and `logps` is in the tables.

    unread: of a reply, the tokens that the model has still to read.
    taken: random numbers, of which the next token takes the one at its place modulo their number.
    """

    unread: deque[int] = field(default_factory=deque)
    taken: list[float] = field(default_factory=list)

    def take(self) -> list[float]:
        """The next random numbers."""
        self.taken = list(islice(self.numbers, _AHEAD))
        return self.taken


class Running:
    """At most `slots` sequences, of which any may be None between two forwards.

    Args:
        stop_ids: those of all requests.
    """

    def __init__(self, slots: int, stop_ids: set[int]) -> None:
        self.lines: list[Line | None] = []
        self._reading: set[Line] = set()
        self._stops = torch.tensor(sorted(stop_ids), dtype=torch.int64)
        # Of each slot: tokens of the prompt, tokens behind it, and the most of these.
        self._prompt, self._count, self._most = torch.zeros((3, slots), dtype=torch.int64)
        self._heats = torch.zeros(slots, dtype=torch.float64)
        self._numbers = torch.zeros((slots, _AHEAD), dtype=torch.float64)
        self._ids = torch.zeros((slots, _AHEAD), dtype=torch.int64)
        self._logps = torch.zeros((slots, _AHEAD), dtype=torch.float64)

    @property
    def count(self) -> int:
        return sum(line is not None for line in self.lines)

    def put(self, lines: Sequence[Line], slots: Sequence[int]) -> None:
        """Give slots to sequences of one prompt: free ones, and then those behind the last."""
        for line, slot in zip(lines, slots, strict=True):
            self.lines[slot : slot + 1] = [line]
            self._reading |= {line} if line.unread else set()
            if count := len(line.ids):
                self._make_room(count + 1)
                self._ids[slot, :count] = torch.tensor(line.ids)
                self._logps[slot, :count] = torch.tensor(line.logps, dtype=torch.float64)
        own, requests = list(slots), [line.request for line in lines]
        self._prompt[own] = len(requests[0].prompt_ids)
        self._count[own] = torch.tensor([len(line.ids) for line in lines])
        self._most[own] = torch.tensor([request.max_new_tokens for request in requests])
        self._heats[own] = torch.tensor([r.temperature for r in requests], dtype=torch.float64)
        self._numbers[own] = _numbers(
            [line.taken if len(line.ids) % _AHEAD else line.take() for line in lines]
        )

    def take_out(self, slot: int) -> Line:
        """Free a slot; its sequence, which then has all of its tokens."""
        line, self.lines[slot] = self.lines[slot], None
        assert line is not None
        known, count = len(line.ids), int(self._count[slot])
        line.ids += self._ids[slot, known:count].tolist()
        line.logps += self._logps[slot, known:count].tolist()
        return line

    def close_gaps(self) -> tuple[list[int], list[int]]:
        """Move the last sequences into free slots: from which slots, and to which."""
        taken = [slot for slot, line in enumerate(self.lines) if line]
        gaps = sorted(set(range(len(taken))) - set(taken))
        last = [slot for slot in taken if slot >= len(taken)]
        tables = (self._prompt, self._count, self._most, self._heats, self._numbers)
        for table in (*tables, self._ids, self._logps) if gaps else ():
            table[gaps] = table[last]
        for source, target in zip(last, gaps, strict=True):
            self.lines[target] = self.lines[source]
        del self.lines[len(taken) :]
        return last, gaps

    def last_tokens(self, rows: int) -> tuple[Tensor, Tensor]:
        """The last token of each sequence, and its position; of `rows` rows, the others 0. There
        must be no gaps."""
        running, missing = len(self.lines), rows - len(self.lines)
        count = self._count[:running]
        ids = self._ids[torch.arange(running), count - 1]
        positions = self._prompt[:running] + count - 1
        return functional.pad(ids, (0, missing)), functional.pad(positions, (0, missing))

    def draw(self, slots: Sequence[int], logits: Tensor) -> list[int]:
        """Draw a token in each of `slots`, or take the next one of a reply in its place; the slots
        in which a turn ends with it."""
        own, device = torch.tensor(slots), logits.device
        count = self._count[own]
        heats, numbers = self._heats[own], self._numbers[own, count % _AHEAD]
        tokens, logps = draw(logits, heats.to(device), numbers.to(device))
        tokens, logps = tokens.cpu(), logps.cpu()
        ends = torch.isin(tokens, self._stops) | (count + 1 == self._most[own])
        for index, slot in enumerate(slots) if self._reading else ():
            line = self.lines[slot]
            if line in self._reading:  # behind a reply there is room for a draw
                line.read.add(int(count[index]))
                tokens[index], logps[index], ends[index] = line.unread.popleft(), 0.0, False
                self._reading -= {line} if not line.unread else set()
        if logps.isnan().any():
            faulty = self.lines[slots[int(logps.isnan().nonzero()[0])]]
            assert faulty is not None
            require_logp(faulty.request, torch.nan)
        self._make_room(int(count.max()) + 1)
        self._ids[own, count], self._logps[own, count] = tokens, logps
        self._count[own] = count + 1
        ended = [slot for slot in own[ends].tolist() if self._ends(slot)]
        if spent := sorted({*own[(count + 1) % _AHEAD == 0].tolist()} - {*ended}):
            lines = (self.lines[slot] for slot in spent)
            self._numbers[spent] = _numbers([line.take() for line in lines if line])
        return ended

    def _ends(self, slot: int) -> bool:
        """Whether the last token ends the turn; others may have other stop tokens."""
        line, count = self.lines[slot], int(self._count[slot])
        assert line is not None
        return count == line.request.max_new_tokens or (
            int(self._ids[slot, count - 1]) in line.request.stop_ids
        )

    def _make_room(self, tokens: int) -> None:
        if tokens > (wide := self._ids.shape[1]):
            more = max(wide, tokens - wide)
            self._ids = functional.pad(self._ids, (0, more))
            self._logps = functional.pad(self._logps, (0, more))


def _numbers(taken: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(taken, dtype=torch.float64)
