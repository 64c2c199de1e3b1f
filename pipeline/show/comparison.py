"""A comparison of results, as tables that use the full width of the page."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.jupyter import JupyterMixin
from rich.table import Table
from rich.text import Text

from pipeline.base.text import cut, visible
from pipeline.show.metrics import marked
from pipeline.store.manifest import Manifest

LONGEST_NAME = 80


def named(name: str, style: str = "") -> Text:
    """A user's name for something, as one line of limited length."""
    return Text(visible(cut(name, LONGEST_NAME)), style)


@dataclass(frozen=True)
class Comparison(JupyterMixin):
    """A table with a row for each result and a column for each metric.

    Columns that do not fit the page go into further tables below, with the same rows.

    Attributes:
        shared: metrics that are the same for all results, printed once.
    """

    results: Mapping[str, Manifest]
    metrics: Sequence[str]
    shared: Mapping[str, str]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        steps = dict.fromkeys(manifest.step for manifest in self.results.values())
        yield Text(", ".join(steps), "bold")
        rest = list(self.metrics)
        while True:
            table, rest = self._widest(console, options, rest)
            yield table
            if not rest:
                break
        if self.shared:
            alike = ", ".join(f"{named(name)} {value}" for name, value in self.shared.items())
            yield Text(f"the same for all: {alike}", "italic")

    def _widest(
        self, console: Console, options: ConsoleOptions, metrics: Sequence[str]
    ) -> tuple[Table, list[str]]:
        """A table of as many metrics as fit, at least one, and the metrics that are left."""
        unlimited = options.update_width(sys.maxsize)
        count = min(1, len(metrics))
        table = self._table(metrics[:count])
        while count < len(metrics):
            wider = self._table(metrics[: count + 1])
            if console.measure(wider, options=unlimited).maximum > options.max_width:
                break
            table, count = wider, count + 1
        return table, list(metrics[count:])

    def _table(self, metrics: Sequence[str]) -> Table:
        table = Table()
        table.add_column("", overflow="fold")
        for metric in metrics:
            heading = Text(named(metric).plain.replace("/", "/\n"))
            table.add_column(heading, justify="right", overflow="fold")
        for name, manifest in self.results.items():
            cells = [marked(manifest.metrics, metric) for metric in metrics]
            table.add_row(named(name), *cells)
        return table
