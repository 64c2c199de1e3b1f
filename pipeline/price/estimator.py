"""What a step declares to be priced by: a pair of functions, named by a text.

    @step(makes=Model, estimate="steps.prices.learning:TRAINING")
    def train_sft(out, tokens, init, config): ...

An *estimator* runs the DAG on sizes in place of data. ``foresee`` is told what a step is called
with and the sizes of its inputs, and says how large its output will be, and what a run of it takes
on some hardware. ``measure`` says the same sizes of an artifact that exists. Sizes have names that
estimators agree on; what is not known is left out, and nothing that needs it is foreseen.

The name is a text so that estimators are in no key, and are imported only when something is to run.
They import no library that takes long to import.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.dag.step import as_input
from pipeline.store.manifest import Manifest

Sizes = Mapping[str, Any]
"""By name; ``bytes`` is the one that every artifact has, ``parts`` holds the sizes of its parts."""


@dataclass(frozen=True)
class Hardware:
    """What one step runs on.

    Attributes:
        model: of its processors or accelerators; empty where that is not known yet.
        devices: accelerators in all; 0 for processors alone.
        threads: of one process.
        memory: bytes of one accelerator, or of the machine; ``None`` where it is not known.
    """

    model: str = ""
    devices: int = 0
    threads: int = 1
    memory: int | None = None

    @property
    def name(self) -> str:
        """What like hardware has the same; empty where the model is not known."""
        return f"{self.devices or self.threads} × {self.model}" if self.model else ""


@dataclass(frozen=True)
class Call:
    """What an estimator is told of a step.

    Attributes:
        arguments: as the author gave them, defaults included.
        size_of: the sizes of an argument that is the output of a step.
    """

    arguments: Mapping[str, Any]
    size_of: Callable[[Any], Sizes]
    hardware: Hardware

    def size(self, argument: str) -> Sizes:
        """The sizes of an input; empty where nothing is known, or no step was given."""
        value = self.arguments.get(argument)
        return {} if as_input(value) is None else self.size_of(value)


@dataclass(frozen=True)
class Made:
    """An artifact that exists, as far as an estimator may look.

    Attributes:
        read: the bytes of one of its files, ``None`` if there is no such file; for small ones.
    """

    manifest: Manifest
    read: Callable[[str], bytes | None]


@dataclass(frozen=True)
class Foreseen:
    """What a step will make and take; ``None`` for what cannot be told.

    Attributes:
        sizes: of its artifact.
        seconds: of one attempt from its start to its end, on the hardware it was asked of.
        memory: the most bytes that one process holds: of its accelerator, or of the machine.
        scratch: bytes of checkpoints and the like, which are deleted once the artifact exists.
        capacity: bytes of memory of such an accelerator, where its model tells.
    """

    sizes: Sizes = field(default_factory=dict)
    seconds: float | None = None
    memory: float | None = None
    scratch: float = 0.0
    capacity: float | None = None


def _nothing(_: Call) -> Foreseen:
    return Foreseen()


def _no_sizes(_: Made) -> Sizes:
    return {}


@dataclass(frozen=True)
class Estimator:
    """How a step is priced; see the module docstring. Raise the ``version`` with what is foreseen:
    what earlier attempts took is compared with what was foreseen by the same one only."""

    foresee: Callable[[Call], Foreseen] = _nothing
    measure: Callable[[Made], Sizes] = _no_sizes
    version: int = 1
