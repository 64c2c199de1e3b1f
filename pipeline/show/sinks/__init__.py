"""Other places to watch metrics: Weights & Biases, TensorBoard.

A sink is a *view*: the truth is the ``metrics.jsonl`` of an artifact and the metrics in its
manifest, and any view can be made again from these. A process of its own (``mirror``, which
``process`` starts) reads them as they grow and hands them on, with the steps that are in the file:
so a run that is killed and goes on has one unbroken history, and nothing that goes wrong with a
sink stops a run. ``weights_and_biases`` and ``tensorboard_files`` are the sinks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline.dag.canonical import resolve_reference
from pipeline.errors import TemperError
from pipeline.extras import require_installed


@dataclass(frozen=True)
class Watched:
    """One step of a run, as a sink is told of it.

    Attributes:
        group: the experiment.
        name: for people; ``step`` with what tells it apart.
        config: settings by path, secrets left out, and the key and where the store is.
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
        """Numbers of one training step; ``at`` only grows. One that is there already is left."""
        ...

    def end(self, summary: Mapping[str, Any]) -> None:
        """The step is done, and these are its metrics."""
        ...


class Sink(Protocol):
    def open(self, watched: Watched) -> View: ...

    def notice(self) -> str:
        """Where to look, in a line."""
        ...


@dataclass(frozen=True)
class Kind:
    """A sink by what makes it, and the package it needs, which is that of an extra."""

    made_by: str
    package: str


SINKS = {
    "wandb": Kind("pipeline.show.sinks.weights_and_biases:WandbSink", "wandb"),
    "tensorboard": Kind("pipeline.show.sinks.tensorboard_files:TensorboardSink", "tensorboard"),
}


def require_sinks(names: list[str]) -> None:
    """
    Raises:
        TemperError: there is no such sink, or its package is not installed.
    """
    for name in names:
        if name not in SINKS:
            raise TemperError(f"sinks: there is no sink {name!r}; there are {', '.join(SINKS)}")
        require_installed([SINKS[name].package], f"sinks: {name}")


def open_sink(name: str) -> Sink:
    return resolve_reference(SINKS[name].made_by)()
