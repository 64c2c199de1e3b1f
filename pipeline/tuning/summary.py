"""Shows the trials of a study, in the terminal and in notebooks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.jupyter import JupyterMixin
from rich.table import Table
from rich.text import Text

from pipeline.show.artifact_handle import Made
from pipeline.show.terminal import named
from pipeline.tuning.goal import Goal
from pipeline.tuning.space import value_text

if TYPE_CHECKING:
    from optuna import Study

_STYLES = {"done": "", "open": "", "stopped": "dim", "failed": "red"}


@dataclass
class Trial:
    """One point of the space, and its results so far.

    Attributes:
        label: its settings as text, which no other trial of the study has.
        settings: the values of settings, by path.
        state: ``open``, ``done``, ``stopped`` or ``failed``.
        held_out: its value at each rung that it has reached.
        value: its value of the goal at its end.
    """

    number: int
    label: str
    settings: Mapping[str, Any]
    state: str = "open"
    held_out: dict[int, float] = field(default_factory=dict)
    value: float | None = None


@dataclass(frozen=True)
class Tuned(JupyterMixin):
    """The trials of a study, which ``rich`` and notebooks show with the best first.

    Attributes:
        study: Optuna's, as for its plots and its importance of settings.
        stop: the metric by which trials were stopped.
        made: the results of the finished trials, by their labels.
    """

    goal: Goal
    stop: Goal | None
    trials: Sequence[Trial]
    made: Mapping[str, Made]
    study: "Study"

    @property
    def best(self) -> Trial:
        """The trial with the best value; of several, the first."""
        return self.ordered[0]

    @property
    def ordered(self) -> list[Trial]:
        """All trials: first those with a value, then those that came far, then failed ones."""
        return sorted(self.trials, key=self._rank)

    def _rank(self, trial: Trial) -> tuple[Any, ...]:
        if trial.value is not None:
            return 0, 0, self.goal.rank(trial.value)
        last = [*trial.held_out.values()][-1:]
        rank = self.stop.rank(last[0]) if self.stop and last else 0.0
        return 1 + (trial.state == "failed"), -len(trial.held_out), rank

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        title = f"{self.goal}, {'less' if self.goal.minimize else 'more'} is better"
        table = Table(title=title, title_justify="left", title_style="bold")
        rungs = sorted({at for trial in self.trials for at in trial.held_out})
        table.add_column("#", justify="right")
        for path in self.best.settings:
            table.add_column(named(path), overflow="fold")
        for at in rungs:
            table.add_column(f"{self.stop and self.stop.metric}\nat {at}", justify="right")
        table.add_column(named(self.goal.metric), justify="right")
        table.add_column("")
        for trial in self.ordered:
            settings = [named(value_text(value)) for value in trial.settings.values()]
            values = [_number(trial.held_out.get(at)) for at in rungs]
            cells = [str(trial.number), *settings, *values, _number(trial.value), trial.state]
            is_best = trial is self.best and trial.value is not None
            table.add_row(*cells, style="bold green" if is_best else _STYLES[trial.state])
        yield table
        if self.best.value is not None:
            settings = " ".join(f"{p}={value_text(v)}" for p, v in self.best.settings.items())
            yield Text(f"best: {settings}  {self.goal.metric} {_number(self.best.value)}", "bold")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
