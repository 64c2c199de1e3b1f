"""The processes that do one step together, each with a device of its own.

``torchrun`` starts them and tells each in its environment which it is. A step enters `together` and
hands what it gets to the machinery; a process that nobody started so is `ALONE`, and everything
below holds for it without a word being exchanged.

A group of processes must be asked for the same things in the same order on every rank. So each
thread that has something to agree on has a group of its own (`Ranks.beside`); that of the model's
gradients, on its devices, belongs to whoever shares it out. What ranks tell each other is JSON.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

_PATIENCE = timedelta(hours=4)
"""How long a rank waits for another that is alive: one writes a large model, others wait for it."""


@dataclass(frozen=True)
class Ranks:
    """Which of `count` processes this is, from 0. mesh: their devices; None for one process."""

    index: int = 0
    count: int = 1
    mesh: DeviceMesh | None = None
    _group: "dist.ProcessGroup | None" = None

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes what a step makes."""
        return self.index == 0

    def beside(self) -> "Ranks":
        """The same ranks for another thread; all must ask for it."""
        return self if self.count == 1 else replace(self, _group=_group())

    def gather(self, value: Any) -> list[Any]:
        """What every rank has to say, in their order, to every rank; it must be JSON."""
        if self.count == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = self._gathered(torch.tensor([len(own)]))
        padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
        padded[: len(own)] = own
        texts = self._gathered(padded)
        return [
            json.loads(text[: int(size)].numpy().tobytes())
            for text, size in zip(texts, sizes, strict=True)
        ]

    def any(self, *mine: bool) -> list[bool]:
        """Of each question, whether any rank says yes."""
        if self.count == 1:
            return list(mine)
        said = torch.tensor(mine, dtype=torch.uint8)
        dist.all_reduce(said, dist.ReduceOp.MAX, group=self._group)
        return [bool(answer) for answer in said]

    def wait(self) -> None:
        """Returns once every rank is here."""
        self.any(False)

    def _gathered(self, own: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(parts, own, group=self._group)
        return parts


ALONE = Ranks()


@contextmanager
def together() -> Iterator[Ranks]:
    """This process among its ranks, while the block runs: over NCCL, each on the GPU that
    ``LOCAL_RANK`` names, or over gloo on processors."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        _take_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    ranks = Ranks(dist.get_rank(), count, init_device_mesh(device, (count,)), _group())
    yield ranks
    # Not after an error: the others may be waiting for this rank, which is about to end.
    ranks.wait()
    dist.destroy_process_group()


def _take_device(number: int) -> None:
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"process {number} of this machine has no GPU, as there are "
            f"{torch.cuda.device_count()}; ask for as many with gpus= as processes="
        )
    torch.cuda.set_device(number)


def _group() -> "dist.ProcessGroup":
    return cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=_PATIENCE))
