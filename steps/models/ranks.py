"""The processes (ranks) that run one step together, each with its own device.

``torchrun`` starts the processes and sets each one's rank in its environment. A step enters
`together` and passes the `Ranks` on. A process that was not started by ``torchrun`` gets `ALONE`,
for which all methods work without communication.

All ranks must use a process group for the same operations in the same order. So each thread that
communicates has its own group (`Ranks.beside`). The group for the model's gradients, on the
devices, belongs to the code that shards the model. Ranks exchange values as JSON.
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
"""How long a rank waits for a live rank; the first one may take long to write a large model."""


@dataclass(frozen=True)
class Ranks:
    """This process's index among `count` processes, from 0, and the mesh of their devices (None for
    a single process)."""

    index: int = 0
    count: int = 1
    mesh: DeviceMesh | None = None
    _group: "dist.ProcessGroup | None" = None

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes the step's output."""
        return self.index == 0

    def beside(self) -> "Ranks":
        """The same ranks with a group for another thread; all ranks must call this together."""
        return self if self.count == 1 else replace(self, _group=_group())

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks in order, on every rank. A value must be JSON."""
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
        """For each flag, whether it is true on any rank."""
        if self.count == 1:
            return list(mine)
        said = torch.tensor(mine, dtype=torch.uint8)
        dist.all_reduce(said, dist.ReduceOp.MAX, group=self._group)
        return [bool(answer) for answer in said]

    def wait(self) -> None:
        """Wait until every rank has made this call."""
        self.any(False)

    def _gathered(self, own: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(parts, own, group=self._group)
        return parts


ALONE = Ranks()


@contextmanager
def together() -> Iterator[Ranks]:
    """This process's ranks, connected while the block runs: by NCCL, each rank on the GPU with the
    number ``LOCAL_RANK``; or by gloo on CPUs."""
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
    # Not after an error: other ranks may be waiting in another operation for this rank, which ends.
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
