"""The sequences in slots. What they draw lies in tables, a row for each slot, until a turn ends: so
a token of any number of sequences takes the same few calls."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from steps.generation.draws import NUMBERS, Streams, cuts_of, draw, stream_key
from steps.generation.engine import Request
from steps.generation.in_process import Written, require_logp


@dataclass(eq=False)
class Line(Written):
    """A completion in slots. While it runs, the newest part of `ids` and `logps` is in the tables.

    key: of its stream of random numbers.
    unread: of a reply, the tokens that the model has still to read.
    """

    key: bytes = field(init=False)
    unread: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.key = stream_key(self.request.seed, self.request.row, self.request.k)


class Running:
    """At most `slots` sequences, of which any may be None between two forwards.

    gaps: the slots before the last sequence that have none.

    Args:
        requests: all that will be put.
    """

    def __init__(self, slots: int, requests: Sequence[Request]) -> None:
        self.lines: list[Line | None] = []
        self.gaps: set[int] = set()
        self._reading: set[Line] = set()
        self._streams = Streams()
        stop_ids = {token for request in requests for token in request.stop_ids}
        self._stops = torch.tensor(sorted(stop_ids), dtype=torch.int64)
        # Of each slot: tokens of the prompt, tokens behind it, and the most of these.
        self._prompt, self._count, self._most = torch.zeros((3, slots), dtype=torch.int64)
        self._heats = torch.zeros(slots, dtype=torch.float64)
        leaves_out = any(request.is_truncated for request in requests)
        self._cuts = torch.zeros((slots, 3), dtype=torch.float64) if leaves_out else None
        self._numbers = torch.zeros((slots, NUMBERS), dtype=torch.float64)
        self._ids = torch.zeros((slots, NUMBERS), dtype=torch.int64)
        self._logps = torch.zeros((slots, NUMBERS), dtype=torch.float64)

    @property
    def count(self) -> int:
        return len(self.lines) - len(self.gaps)

    def put(self, lines: Sequence[Line]) -> list[int]:
        """Give the first free slots to sequences; these slots."""
        slots = sorted(self.gaps)[: len(lines)]
        slots += range(len(self.lines), len(self.lines) + len(lines) - len(slots))
        self.gaps.difference_update(slots)
        for line, slot in zip(lines, slots, strict=True):
            self.lines[slot : slot + 1] = [line]
            self._reading |= {line} if line.unread else set()
            if count := len(line.ids):
                self._make_room(count + 1)
                self._ids[slot, :count] = torch.tensor(line.ids)
                self._logps[slot, :count] = torch.tensor(line.logps, dtype=torch.float64)
        own, requests = torch.tensor(slots), [line.request for line in lines]
        self._prompt[own] = torch.tensor([len(request.prompt_ids) for request in requests])
        self._count[own] = torch.tensor([len(line.ids) for line in lines])
        self._most[own] = torch.tensor([request.max_new_tokens for request in requests])
        self._heats[own] = torch.tensor([r.temperature for r in requests], dtype=torch.float64)
        if self._cuts is not None:
            self._cuts[own] = cuts_of(requests)
        self._take_numbers(slots)
        return slots

    def take_out(self, slots: Sequence[int]) -> list[Line]:
        """Free slots; their sequences, which then have all of their tokens."""
        own, taken = torch.tensor(slots), []
        counts = self._count[own]
        longest = int(counts.max())
        tables = (table[own, :longest].tolist() for table in (self._ids, self._logps))
        for slot, count, ids, logps in zip(slots, counts.tolist(), *tables, strict=True):
            line, self.lines[slot] = self.lines[slot], None
            assert line is not None
            line.ids, line.logps = ids[:count], logps[:count]
            taken.append(line)
        self.gaps.update(slots)
        return taken

    def close_gaps(self) -> tuple[list[int], list[int]]:
        """Move the last sequences into free slots: from which slots, and to which."""
        if not self.gaps:
            return [], []
        count = self.count
        gaps = sorted(gap for gap in self.gaps if gap < count)
        last = [slot for slot in range(count, len(self.lines)) if slot not in self.gaps]
        tables = [self._prompt, self._count, self._most, self._heats, self._numbers]
        tables += [] if self._cuts is None else [self._cuts]
        targets, sources = torch.tensor(gaps), torch.tensor(last)
        for table in (*tables, self._ids, self._logps) if gaps else ():
            table[targets] = table[sources]
        for source, target in zip(last, gaps, strict=True):
            self.lines[target] = self.lines[source]
        del self.lines[count:]
        self.gaps.clear()
        return last, gaps

    def last_tokens(self, rows: int) -> tuple[Tensor, Tensor]:
        """The last token of each sequence, and its position; of `rows` rows, the others 0. There
        must be no gaps."""
        running, missing = len(self.lines), rows - len(self.lines)
        count = self._count[:running]
        ids = self._ids[torch.arange(running), count - 1]
        positions = self._prompt[:running] + count - 1
        return functional.pad(ids, (0, missing)), functional.pad(positions, (0, missing))

    def draw(self, own: Tensor, logits: Tensor) -> list[int]:
        """Draw a token in each of the slots `own`, or take the next one of a reply in its place;
        the slots in which a turn ends with it."""
        device = logits.device
        count = self._count[own]
        heats, numbers = self._heats[own], self._numbers[own, count % NUMBERS]
        cuts = None if self._cuts is None else self._cuts[own].to(device)
        tokens, logps = draw(logits, heats.to(device), numbers.to(device), cuts)
        tokens, logps = tokens.cpu(), logps.cpu()
        ends = torch.isin(tokens, self._stops) | (count + 1 == self._most[own])
        for index, slot in enumerate(own.tolist()) if self._reading else ():
            line = self.lines[slot]
            if line in self._reading:  # behind a reply there is room for a draw
                line.read.add(int(count[index]))
                tokens[index], logps[index], ends[index] = line.unread.popleft(), 0.0, False
                self._reading -= {line} if not line.unread else set()
        if logps.isnan().any():
            faulty = self.lines[int(own[logps.isnan()][0])]
            assert faulty is not None
            require_logp(faulty.request, torch.nan)
        self._make_room(int(count.max()) + 1)
        self._ids[own, count], self._logps[own, count] = tokens, logps
        self._count[own] = count + 1
        ended = [slot for slot in own[ends].tolist() if self._ends(slot)]
        if spent := sorted({*own[(count + 1) % NUMBERS == 0].tolist()} - {*ended}):
            self._take_numbers(spent)
        return ended

    def _take_numbers(self, slots: Sequence[int]) -> None:
        """Make the random numbers of the next tokens in `slots`."""
        keys = [line.key for slot in slots if (line := self.lines[slot])]
        blocks = (self._count[slots] // NUMBERS).tolist()
        self._numbers[slots] = self._streams.numbers(keys, blocks)

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
