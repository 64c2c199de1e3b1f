"""Estimators: a step declares one by name to have its cost estimated.

    @step(makes=Model, estimate="steps.prices.learning:TRAINING")
    def train_sft(out, tokens, init, config): ...

An *estimator* runs the DAG on sizes in place of data. ``foresee`` gets the arguments of a step and
the sizes of its inputs; it estimates the size of the output, and the cost of a run on given
hardware. ``measure`` returns the same sizes for an existing artifact. Estimators agree on the names
of sizes. Unknown sizes are left out, and nothing that depends on them is estimated.

An estimator is declared as text, so that it is in no key and is imported only when steps will run.
Estimators must import no library that takes long to import.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.dag.step import as_input
from pipeline.store.manifest import Manifest

Sizes = Mapping[str, Any]
"""Sizes by name. Every artifact has ``bytes``; ``parts`` holds the sizes of its parts."""


@dataclass(frozen=True)
class Hardware:
    """The hardware on which one step runs.

    Attributes:
        model: the model of its processors or accelerators; empty if unknown.
        devices: the number of accelerators in all; 0 if it uses only processors.
        threads: the number of threads of one process.
        memory: bytes of one accelerator, or of the machine; ``None`` if unknown.
        is_instant: whether arithmetic, memory traffic and files take no time. What an estimate then
            leaves is overhead: starts of processes, calls, work of the interpreter.
    """

    model: str = ""
    devices: int = 0
    threads: int = 1
    memory: int | None = None
    is_instant: bool = False

    @property
    def name(self) -> str:
        """A name that equivalent hardware shares; empty if the model is unknown."""
        return f"{self.devices or self.threads} × {self.model}" if self.model else ""


@dataclass(frozen=True)
class Call:
    """A call of a step, as an estimator sees it.

    Attributes:
        arguments: the arguments that the author gave, and defaults.
        size_of: returns the sizes of an argument that is the output of a step.
        pace: how many times as long as its estimator says the step takes on this machine. Whether
            it is long enough for a checkpoint depends on that.
    """

    arguments: Mapping[str, Any]
    size_of: Callable[[Any], Sizes]
    hardware: Hardware
    pace: float = 1.0

    def size(self, argument: str) -> Sizes:
        """The sizes of an input; empty if they are unknown, or the argument is no step's output."""
        value = self.arguments.get(argument)
        return {} if as_input(value) is None else self.size_of(value)


@dataclass(frozen=True)
class Made:
    """An existing artifact, as an estimator sees it.

    Attributes:
        read: returns the bytes of a small file; ``None`` if there is no such file or it is large.
    """

    manifest: Manifest
    read: Callable[[str], bytes | None]


@dataclass(frozen=True)
class Foreseen:
    """The estimates for a step; ``None`` for unknown amounts.

    Attributes:
        sizes: the sizes of its artifact.
        seconds: the duration of one attempt on the given hardware.
        memory: the most bytes that one process holds, on its accelerator or in the machine.
        scratch: bytes of checkpoints and other files that are deleted once the artifact exists.
        capacity: bytes of memory of such an accelerator, if its model determines that.
        note: a phrase for the plan, such as how to make an amount known.
    """

    sizes: Sizes = field(default_factory=dict)
    seconds: float | None = None
    memory: float | None = None
    scratch: float = 0.0
    capacity: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Estimator:
    """The functions that estimate a step; see the module docstring. Raise ``version`` when
    estimates change: earlier attempts are compared only with estimates of the same version."""

    foresee: Callable[[Call], Foreseen] = lambda _: Foreseen()
    measure: Callable[[Made], Sizes] = lambda _: {}
    version: int = 1
