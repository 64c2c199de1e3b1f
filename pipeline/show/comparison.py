"""A comparison of results, as tables that use the full width of the page.

The settings in which results differ are columns. Results that differ in seeds alone have another
row below, with their mean, the lowest and the highest value.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.jupyter import JupyterMixin
from rich.table import Table
from rich.text import Text

from pipeline.base.text import cut, visible
from pipeline.plan.variants import is_seed, label, value_text
from pipeline.show.metrics import marked, pooled
from pipeline.store.manifest import Manifest

LONGEST_NAME = 80


def named(name: str, style: str = "") -> Text:
    """A user's name for something, as one line of limited length."""
    return Text(visible(cut(name, LONGEST_NAME)), style)


def family_name(family: Sequence[str], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of results that differ in seeds alone: ``evaluation beta=0.1, mean of 3``."""
    own = {s: value_text(of[family[0]]) for s, of in settings.items() if family[0] in of}
    named = f"{_base(family[0], settings)} {label({s: own[s] for s in own if not is_seed(s)})}"
    return f"{named.strip() or 'seeds'}, mean of {len(family)}"


def _base(name: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """A name without the settings at its end."""
    own = {label({s: value_text(of[name])}) for s, of in settings.items() if name in of}
    words = name.split(" ")
    while words and words[-1] in own:
        words.pop()
    return " ".join(words)


@dataclass(frozen=True)
class Comparison(JupyterMixin):
    """A table with a row for each result, and a column for each setting and metric.

    Metrics that do not fit the page go into further tables below, with the same rows.

    Attributes:
        shared: metrics that are the same for all results, printed once.
        settings: the values of each setting in which results differ, by result.
        families: the names of results that differ in seeds alone.
    """

    results: Mapping[str, Manifest]
    metrics: Sequence[str]
    shared: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    families: Sequence[Sequence[str]] = ()

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
        if self.families:
            yield Text("mean: over seeds, with the lowest and the highest value", "italic")

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
        for setting in self.settings:
            table.add_column(named(setting), justify="right", overflow="fold")
        for metric in metrics:
            heading = Text(named(metric).plain.replace("/", "/\n"))
            table.add_column(heading, justify="right", overflow="fold")
        metrics_of = {name: manifest.metrics for name, manifest in self.results.items()}
        means = [(of, pooled([metrics_of[name] for name in of])) for of in self.families]
        rows = [([name], of) for name, of in metrics_of.items()]
        for number, (names, values) in enumerate([*rows, *means], 1):
            settings = [self._setting(setting, names) for setting in self.settings]
            cells = [*settings, *(marked(values, metric) for metric in metrics)]
            table.add_row(named(self._short(names[0])), *cells, end_section=number == len(rows))
        return table

    def _setting(self, setting: str, names: Sequence[str]) -> str:
        """The value that results of one row have of a setting; of a seed, how many there are."""
        of = self.settings[setting]
        values = {value_text(of[name]) for name in names if name in of}
        return f"mean of {len(names)}" if len(values) > 1 else "".join(values)

    def _short(self, name: str) -> str:
        """A name without the settings at its end, which have columns."""
        return _base(name, self.settings) or name
