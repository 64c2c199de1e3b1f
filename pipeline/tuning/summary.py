"""Shows the trials of a study, in the terminal and in notebooks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.jupyter import JupyterMixin
from rich.table import Table
from rich.text import Text

from pipeline.show.made import Made
from pipeline.show.terminal import named
from pipeline.tuning.search import Study, Trial
from pipeline.tuning.space import value_text

_STYLES = {"done": "", "stopped": "dim", "failed": "red"}


@dataclass(frozen=True)
class Tuned(JupyterMixin):
    """The trials of a study, which ``rich`` and notebooks show with the best first.

    Attributes:
        made: the results of the finished trials, by their settings.
    """

    study: Study
    trials: Sequence[Trial]
    made: Mapping[str, Made]

    @property
    def best(self) -> Trial:
        """The trial with the best value; of several, the first."""
        return self.ordered[0]

    @property
    def ordered(self) -> list[Trial]:
        """All trials: first those with a value, then stopped ones, then failed ones."""
        return sorted(self.trials, key=self._rank)

    def _rank(self, trial: Trial) -> tuple[Any, ...]:
        if trial.value is not None:
            return 0, 0, self.study.goal.rank(trial.value), trial.number
        last = [*trial.held_out.values()][-1:]
        halving = self.study.halving
        rank = halving.goal.rank(last[0]) if halving is not None and last else 0.0
        return 1 + trial.has_failed, -len(trial.held_out), rank, trial.number

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        goal, halving = self.study.goal, self.study.halving
        rungs = () if halving is None else halving.rungs
        title = f"{goal}, {'less' if goal.minimize else 'more'} is better"
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column("#", justify="right")
        for path in self.study.space:
            table.add_column(named(path), overflow="fold")
        for at in rungs:
            assert halving is not None
            table.add_column(f"{halving.goal.metric}\nat {at}", justify="right")
        table.add_column(named(goal.metric), justify="right")
        table.add_column("")
        for trial in self.ordered:
            settings = [named(value_text(value)) for value in trial.settings.values()]
            held_out = [_number(trial.held_out.get(at)) for at in rungs]
            cells = [str(trial.number), *settings, *held_out, _number(trial.value), trial.state]
            is_best = trial is self.best and trial.value is not None
            table.add_row(*cells, style="bold green" if is_best else _STYLES[trial.state])
        yield table
        if self.best.value is not None:
            settings = " ".join(f"{p}={value_text(v)}" for p, v in self.best.settings.items())
            yield Text(f"best: {settings}  {goal.metric} {_number(self.best.value)}", "bold")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
