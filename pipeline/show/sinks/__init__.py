"""Sinks show metrics in Weights & Biases and TensorBoard.

A sink is a *view*: the data is the ``metrics.jsonl`` of an artifact and the metrics in its
manifest, and any view can be made again from these. A separate process (``mirror``, which
``process`` starts) reads the files as they grow and sends their records to the sinks, with the step
numbers in the file. So a run that is killed and resumed has one unbroken history, and no failure of
a sink stops a run. Each run shows the steps that it makes; whose lease it waits for, another run
makes and shows. ``weights_and_biases`` and ``tensorboard_files`` are the sinks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline.base.errors import TemperError
from pipeline.base.extras import require_installed
from pipeline.base.text import hint
from pipeline.dag.canonical import resolve_reference


@dataclass(frozen=True)
class Watched:
    """What a sink knows of one step of a run.

    Attributes:
        group: the experiment.
        name: the display name; ``step`` with a label that distinguishes it.
        config: settings by path without secrets, the key, and the address of the store.
        folder: where a sink may keep files.
    """

    group: str
    step: str
    name: str
    key: str
    config: Mapping[str, Any]
    folder: Path


class View(Protocol):
    """One step in one sink."""

    def log(self, at: int, values: Mapping[str, float]) -> None:
        """Log the numbers of one training step. ``at`` increases; a step that the sink already has
        is skipped."""
        ...

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """The step has ended. ``summary`` holds its metrics; None if it made no artifact."""
        ...


class Sink(Protocol):
    def open(self, watched: Watched) -> View: ...

    def notice(self) -> str:
        """One line that says where to look at the metrics."""
        ...


SINKS = {
    "wandb": "pipeline.show.sinks.weights_and_biases:WandbSink",
    "tensorboard": "pipeline.show.sinks.tensorboard_files:TensorboardSink",
}
"""The class of each sink; a sink has the name of the package that it needs."""


def require_known(names: Iterable[str]) -> None:
    """
    Raises:
        TemperError: there is no such sink.
    """
    for name in names:
        if name not in SINKS:
            raise TemperError(f"sinks: there is no sink {name!r}; {hint(name, [*SINKS])}")


def require_sinks(names: Iterable[str]) -> None:
    """
    Raises:
        TemperError: there is no such sink, or its package is not installed.
    """
    require_known(names)
    for name in names:
        require_installed([name], f"sinks: {name}")


def open_sink(name: str) -> Sink:
    return resolve_reference(SINKS[name])()
