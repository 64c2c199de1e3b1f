"""Forwards of a sampler that a GPU replays.

A forward of one token of some sequences starts hundreds of kernels, and a GPU computes them faster
than the processor starts them. A CUDA graph records the kernels of one forward, and starts all of
them with one call. It reads and writes where the recorded forward did. So the tokens and positions
of every forward are copied to the same place, the cache keeps its blocks, and one graph serves one
number of rows over one number of blocks.

The first forward of a kind is no recording: it shows whether the model ever waits for a result, as
some mixtures of experts do, and such a model is never recorded.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache as remembered

import torch
from torch import Tensor

from steps.generation.cache import FixedDecode, KeyValueCache, Turn
from steps.shared.padded_rows import padded_rows

Forward = Callable[[Tensor, Tensor, Turn], Tensor]
"""Ids [rows], positions [rows] and a turn to logits [rows, V]."""
Replay = Callable[[], Tensor]

_broken: list[torch.cuda.CUDAGraph] = []
"""Graphs whose recording ended with an error: the allocator may still ask them about streams."""


@dataclass(eq=False)
class Replays:
    """The decoding forwards of one call of `sample`.

    refused: whether this model has turned out to be one that cannot be replayed.

    Args:
        forward: reads a token of each row.
        slots: the most running sequences.
    """

    cache: KeyValueCache
    forward: Forward
    slots: int
    refused: bool = False
    _kinds: dict[tuple[int, int], "_Kind"] = field(default_factory=dict)

    def rows(self, running: int) -> int:
        """How many rows a forward of `running` sequences has: few numbers, as each has a graph."""
        rows = padded_rows(self.slots)
        while (fewer := padded_rows(-(-rows // 2))) < rows and fewer >= running:
            rows = fewer
        return rows

    def logits(self, ids: Tensor, positions: Tensor) -> Tensor | None:
        """The logits [rows, V] after the tokens `ids` at `positions`, int64 [rows] on the host.
        The next call may overwrite them. None if they cannot be replayed, or the memory for that is
        missing, which another call of `sample` may have."""
        self.cache.resize(int(positions.max()) + 1)
        blocks = len(self.cache.blocks)
        self._kinds = {kind: own for kind, own in self._kinds.items() if kind[1] == blocks}
        device = self.cache.blocks[0][0].device
        kind = len(ids), blocks
        if kind not in self._kinds:
            inputs = ids.to(device), positions.to(device)
            self._kinds[kind] = _Kind(self.forward, self.cache, *inputs)
        try:
            return self._kinds[kind].logits(ids, positions)
        except RuntimeError as error:
            self.refused = not isinstance(error, torch.OutOfMemoryError)
            self._kinds.clear()
            return None


@dataclass(eq=False)
class _Kind:
    """Forwards of one number of rows and blocks, whose inputs lie in `ids` and `positions`."""

    forward: Forward
    cache: KeyValueCache
    ids: Tensor
    positions: Tensor
    was_tried: bool = False
    replay: Replay | None = None

    def logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        if not self.was_tried:
            self.was_tried = True
            with refusing_to_wait(self.ids.device):
                return self._run()
        if self.replay is None:
            self.replay = recorded(self._run, self.ids.device)
        return self.replay()

    def _run(self) -> Tensor:
        return self.forward(self.ids, self.positions, FixedDecode(self.cache, self.positions))


@contextmanager
def refusing_to_wait(device: torch.device) -> Iterator[None]:
    """In the block, an operation that waits for a GPU's result raises RuntimeError."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that not every such operation is known
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def recorded(run: Replay, device: torch.device) -> Replay:
    """Record the kernels that `run` starts on a GPU, without starting them; a function that starts
    all of them, and returns the tensor that they fill.

    Raises RuntimeError if `run` does something that cannot be recorded.
    """
    try:
        graph, output = _record(run, device)
    except RuntimeError:
        # Else random numbers stay in a recording.
        _record(lambda: torch.zeros(1, device=device), device)
        raise

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


def _record(run: Replay, device: torch.device) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    # `torch.cuda.graph` would also collect garbage, and empty the allocator's cache.
    with torch.cuda.device(device):  # a thread may have another one, whose kernels were recorded
        graph, stream = torch.cuda.CUDAGraph(), _stream(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), _without_garbage_collection():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                output = run()
            except BaseException:
                with suppress(RuntimeError):  # which only follows from the error
                    graph.capture_end()
                _broken.append(graph)
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
    return graph, output


@remembered
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all recordings: libraries keep memory for every stream that they have seen."""
    return torch.cuda.Stream(device)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A graph that is deleted during a recording ends it."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
