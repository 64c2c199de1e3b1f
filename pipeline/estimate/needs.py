"""What a step declares of its cost, by name:

    @step(makes=Model, estimate="steps.step_needs:of_model")
    def train_sft(out, tokens, init, config): ...

The function gets the call. It returns the *work*, by which the times of earlier runs are scaled,
and memory and disk by formula. A step that declares nothing works on the bytes of its inputs, and
takes the memory that it took before. As the declaration is a text, it is in no key, and is imported
only when steps will run; its module must import no library that takes long to import.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.estimate.machine import Hardware
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest

LARGEST_READ = 2**20


@dataclass(frozen=True)
class Made:
    """An artifact, or the part of it in one folder."""

    manifest: Manifest
    part: str | None
    store: Store

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; ``None`` if there is no such file, or it is large."""
        name = name if self.part is None else f"{self.part}/{name}"
        entry = self.manifest.files.get(name)
        if entry is None or entry.size > LARGEST_READ:
            return None
        return self.store.read(f"{self.store.content_path(self.manifest)}/{name}")


@dataclass(frozen=True)
class Call:
    """A call of a step. For an argument that is a step's output, `made` returns the artifact, and
    `size` its bytes. If that step will run, they are the last artifact that it made of equal
    arguments and inputs, and an estimate; ``None`` if there is none."""

    arguments: Mapping[str, Any]
    hardware: Hardware
    made: Callable[[Any], Made | None]
    size: Callable[[Any], float | None]


@dataclass(frozen=True)
class Needs:
    """What a step needs; ``None`` for unknown amounts.

    Attributes:
        work: what its time is proportional to, by unit, the best measure first. Runs are compared
            in the first unit that both have.
        memory: the most bytes that one process holds, on its accelerator or in the machine.
        disk: bytes of its artifact.
        scratch: bytes of checkpoints, which are deleted once the artifact exists.
        capacity: bytes of memory of such an accelerator, if its model determines that.
    """

    work: Mapping[str, float] = field(default_factory=dict)
    memory: float | None = None
    disk: float | None = None
    scratch: float | None = None
    capacity: float | None = None
