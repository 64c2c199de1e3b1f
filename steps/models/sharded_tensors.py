"""Tensors whose rows are sharded over several ranks, on disk and in memory.

    state.safetensors                 all rows of every tensor, from one process
    state-00000-of-00002.safetensors  the rows of one rank; `rows` in the header gives their
                                      position: {name: [first row, rows of the whole tensor]}

Every rank writes its own rows, in parallel and without communication. A rank reads the rows that it
needs from all files that contain them. So any number of ranks can read what N ranks have written.

The rows of a rank are those that FSDP assigns to it: of R rows, each of N ranks gets ⌈R/N⌉ until
none are left. The first rank writes values that are not sharded (such as a count of steps).
"""

import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from steps.models.folders import writing

_ROWS = "rows"


class Whole(Protocol):
    """A tensor with all its rows, in memory or on disk: `tensor[2:4]` gives two rows,
    `tensor[...]` all."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, rows: Any, /) -> Tensor: ...


SomeTensor = TypeVar("SomeTensor", bound=Whole)


def below(tensors: Mapping[str, SomeTensor], prefix: str) -> dict[str, SomeTensor]:
    """The tensors whose names have the `prefix`, by the names without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


@dataclass(frozen=True)
class Pieces:
    """Copies, on the host, of one rank's rows of some tensors.

    rows: for each sharded tensor, the rank's first row and the number of rows of the whole tensor.
    """

    tensors: Mapping[str, Tensor]
    rows: Mapping[str, tuple[int, int]]

    def write(self, path: Path) -> None:
        """Write the rows to this rank's file."""
        spread = {_ROWS: json.dumps(self.rows)} if self.rows else {}
        with writing(path):  # a file without tensors cannot be read if it has no metadata
            save_file(dict(self.tensors), path, {"format": "pt", **spread})


def pieces_of(tensors: Mapping[str, Tensor], is_first: bool = True) -> Pieces:
    """Copies of this rank's rows of `tensors`. Only the first rank copies unsharded tensors."""
    copies, rows = {}, {}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            own = own_rows(tensor)
            if own.start == own.stop:
                continue
            rows[name] = (own.start, tensor.shape[0])
        elif not is_first:
            continue
        copies[name] = on_host(local(tensor))
    return Pieces(copies, rows)


class Stored(Mapping[str, Whole]):
    """The tensors in the files of a run's ranks. Rows are read from disk on access."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._tensors: dict[str, _StoredTensor] = {}
        for path in files:
            file: Any = safe_open(path, framework="pt")
            rows = json.loads((file.metadata() or {}).get(_ROWS, "{}"))
            for name in file.keys():  # noqa: SIM118
                shape = file.get_slice(name).get_shape()
                first, total = rows.get(name, (0, shape[0] if shape else 1))
                tensor = _StoredTensor(name, (total, *shape[1:]) if shape else ())
                self._tensors.setdefault(name, tensor).parts.append((first, file))

    def __getitem__(self, name: str) -> Whole:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True)
class _StoredTensor:
    """parts: for each file with rows of the tensor, the first of these rows and the open file."""

    name: str
    shape: tuple[int, ...]
    parts: list[tuple[int, Any]] = field(default_factory=list)

    def __getitem__(self, rows: Any, /) -> Tensor:
        if not self.shape:
            return self.parts[0][1].get_tensor(self.name)
        start, stop = (0, self.shape[0]) if rows is ... else (rows.start, rows.stop)
        found = []
        for first, file in sorted(self.parts, key=lambda part: part[0]):
            part = file.get_slice(self.name)
            last = first + part.get_shape()[0]
            if first < stop and last > start:
                found.append(part[max(start, first) - first : min(stop, last) - first])
        if sum(map(len, found)) != stop - start:
            raise ValueError(f"rows {start} to {stop} of {self.name} are not all there")
        return found[0] if len(found) == 1 else torch.cat(found)


def put(source: Whole, target: Tensor) -> None:
    """Copy the rows of `source` that belong to this rank into `target`. Raises ValueError if the
    shapes differ."""
    if tuple(source.shape) != tuple(target.shape):
        raise ValueError(f"a shape is {tuple(source.shape)}, not {tuple(target.shape)}")
    own = own_rows(target) if isinstance(target, DTensor) else ...
    if own is ... or own.start < own.stop:
        local(target).copy_(source[own])


def whole(tensor: Tensor) -> Tensor:
    """All rows of a tensor, on every rank; all ranks must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's rows of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: DTensor) -> slice:
    """The range of this rank's rows of a tensor."""
    total, mesh = tensor.shape[0], tensor.device_mesh
    each = -(-total // mesh.size())
    start = min(mesh.get_local_rank() * each, total)
    own = slice(start, min(start + each, total))
    assert own.stop - own.start == tensor.to_local().shape[0]
    return own


def rows_of_all(tensor: Tensor) -> Iterator[Tensor]:
    """The rows of each rank in turn, on every rank; all ranks must go through them together."""
    own = local(tensor).detach().contiguous()
    if not isinstance(tensor, DTensor):
        yield own
        return
    mesh, total = tensor.device_mesh, tensor.shape[0]
    each = -(-total // mesh.size())
    for rank, start in enumerate(range(0, total, each)):
        rows = own
        if rank != mesh.get_local_rank():
            rows = own.new_empty(min(each, total - start), *tensor.shape[1:])
        dist.broadcast(rows, group_src=rank, group=mesh.get_group())
        yield rows


def on_disk(parts: Iterable[Tensor], shape: Sequence[int]) -> Tensor:
    """Rows as one tensor in a file of the temporary folder that has no name and goes with the
    tensor. It is mapped into memory, which its pages leave when others need the room."""
    dtype = torch.float32
    with tempfile.TemporaryFile() as file:
        for part in parts:
            dtype = part.dtype
            file.write(part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        file.flush()
        if not file.tell():
            return torch.empty(*shape, dtype=dtype)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return torch.frombuffer(mapped, dtype=dtype).view(tuple(shape))


def on_host(tensor: Tensor) -> Tensor:
    """A copy, in the host's memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()
