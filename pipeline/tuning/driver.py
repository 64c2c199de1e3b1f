"""``tune``: runs the trials of a study, each to a rung or to its end.

A trial that is stopped early has no artifact, so it can never be taken for a finished one. Its
training keeps its checkpoint and its log in scratch. A later run with that config, in a study or
not, resumes from there.
"""

import contextlib
import difflib
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.dag.grid import replaced, require_apart, require_config, shown_names
from pipeline.dag.step import Step
from pipeline.errors import TemperError
from pipeline.plan.planning import topological
from pipeline.plan.resolver import Resolver
from pipeline.running.run_request import (
    built,
    check_names,
    check_request,
    refuse_in_worker,
    visible_to_workers,
)
from pipeline.running.session import advance, then_look_again
from pipeline.show.made import Made
from pipeline.show.metrics import comparable_metrics, is_interval, is_number
from pipeline.show.metrics_log import METRICS, unfinished_log
from pipeline.show.sinks import require_sinks
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.text import hint, visible
from pipeline.tuning.search import Goal, Halving, Study, Trial, ask, promote
from pipeline.tuning.space import Axis, Space, space_of, value_text
from pipeline.wire.spec import Pause

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.launchers.config import LauncherConfig
    from pipeline.tuning.summary import Tuned

TUNING = "TEMPER_TUNING"
"""Set by ``temper tune`` for a script: the options of a study, as JSON."""
Config = TypeVar("Config")
_SLIP = 0.85
"""From this similarity on, :mod:`difflib`'s, a name is taken for a misspelling of another."""
Configure = Callable[[Mapping[str, Any]], Mapping[str, Step]]
"""Makes the results of the experiment for values of settings, by path."""


def tune(
    build: Callable[[Config], Mapping[str, Step]],
    config: Config,
    space: Mapping[str, Any],
    metric: str,
    *,
    trials: int,
    sampler: str = "tpe",
    seed: int = 0,
    batch: int | None = None,
    stop_on: str | None = None,
    rungs: Sequence[int] = (),
    reduction: int = 2,
    store: str | Store | None = None,
    jobs: int = 1,
    launcher: "LauncherConfig | None" = None,
    console: "Console | None" = None,
    sinks: Collection[str] = (),
) -> "Tuned":
    """Search for the settings that optimise a metric of a result.

        tuned = tune(my_experiment, Config(), {"dpo.loss.beta": [0.1, 0.3, 1.0]}, "DPO.exact_match",
                     trials=3)
        tuned.best.settings, tuned.best.value

    Args:
        build: the experiment: a function from a config to its results by name.
        config: the config whose settings vary.
        space: for each of these settings, by path, a list of values or one of Optuna's
            distributions.
        metric: ``RESULT.METRIC``, with ``:min`` or ``:max``. Without these, a loss, a KL divergence
            or a perplexity is minimised, and any other metric is maximised.
        trials: the largest number of trials.
        sampler: ``tpe`` (Bergstra et al. 2011, by Optuna), ``random`` or ``grid``.
        seed: the same seed gives the same trials.
        batch: how many trials are chosen at once, before the results of any; 4 for ``tpe``.
        stop_on: ``STEP.METRIC``, such as ``train_dpo.eval_loss``: at each rung, trials whose value
            is not among the best are stopped.
        rungs: the numbers of updates of that step after which trials are compared.
        reduction: one trial in so many continues.
        store, jobs, launcher, sinks: as for :func:`pipeline.run`.

    Raises:
        TemperError: a setting, a result or a metric does not exist, or every trial failed.
    """
    refuse_in_worker("tune")
    require_config(config, "tune")

    def configure(values: Mapping[str, Any]) -> Mapping[str, Step]:
        changed: Any = config
        for path, value in values.items():
            changed = replaced(changed, path, value, f"{path}={value_text(value)}")
        return built(build, changed)

    return search(
        configure,
        space_of(space),
        Options(metric, trials, sampler, seed, batch, stop_on, rungs, reduction),
        visible_to_workers(store),
        jobs,
        launcher,
        console,
        sinks,
    )


class NoMetric(TemperError):
    """A trial does not have a metric that the study needs."""


@dataclass(frozen=True)
class Options:
    """The options of a search; see :func:`tune`."""

    metric: str
    trials: int
    sampler: str = "tpe"
    seed: int = 0
    batch: int | None = None
    stop_on: str | None = None
    rungs: Sequence[int] = ()
    reduction: int = 2

    def study(self, space: Space, results: Mapping[str, Step]) -> Study:
        """
        Args:
            results: the results of any trial.

        Raises:
            TemperError: there is no such result, step, or sampler.
        """
        goal = Goal.parse(self.metric, results.keys(), "--metric")
        if not isinstance(self.rungs, Sequence):
            raise TemperError(f"rungs={self.rungs!r}: give numbers of updates, as in [5, 10]")
        halving = None
        if self.stop_on is not None:
            steps = dict.fromkeys(step.name for step in topological([results[goal.owner]]))
            stop = Goal.parse(self.stop_on, steps.keys(), "--stop-on")
            halving = Halving(stop, self.rungs, self.reduction)
        elif self.rungs:
            raise TemperError("--rungs says when to compare trials; add --stop-on STEP.METRIC")
        return Study(space, goal, self.trials, self.sampler, self.seed, self.batch, halving)


@then_look_again()  # at the end only: all trials have the same code and files
def search(
    configure: Configure,
    space: Space,
    options: Options,
    store: Store,
    jobs: int = 1,
    launcher: "LauncherConfig | None" = None,
    console: "Console | None" = None,
    sinks: Collection[str] = (),
) -> "Tuned":
    """Like :func:`tune`, for settings that ``configure`` interprets."""
    return _tuner(configure, space, options, store, jobs, launcher, console, sinks).tuned()


def first_trials(
    configure: Configure, space: Space, options: Options, store: Store, console: "Console"
) -> tuple[Mapping[str, Step], int]:
    """The results of the trials with which a study begins, and how many trials it has."""
    tuner = _tuner(configure, space, options, store, 1, None, console, ())
    return tuner.planned(), tuner.study.size


def _tuner(
    configure: Configure,
    space: Space,
    options: Options,
    store: Store,
    jobs: int,
    launcher: "LauncherConfig | None",
    console: "Console | None",
    sinks: Collection[str],
) -> "_Tuner":
    from pipeline.show.terminal import make_console

    require_apart(space, "tune")
    results = _any_results(configure, space)
    check_request(results, jobs, launcher)
    check_names(sinks=sinks)
    require_sinks(list(sinks))
    study = options.study(space, results)
    console = console or make_console()
    if told := study.left_out:
        console.print(f"note: {told}", markup=False, soft_wrap=True)
    _note_slip(study.goal, results[study.goal.owner], store, console)
    if study.halving is not None:
        _require_logs_here(store, launcher)
    return _Tuner(study, configure, store, jobs, launcher, console, sinks)


def _any_results(configure: Configure, space: Space) -> Mapping[str, Step]:
    """The results of some trial. If one combination of values is refused, others may not be; but
    each setting must have a value that the experiment accepts.

    Raises:
        TemperError: a setting has none.
    """
    try:
        return configure({path: axis.some_values[0] for path, axis in space.items()})
    except TemperError:
        alone = [_results_of_one(configure, path, axis) for path, axis in space.items()]
        return alone[0]


def _results_of_one(configure: Configure, path: str, axis: Axis) -> Mapping[str, Step]:
    """The results with a value of one setting, while others are as they are."""
    refused: TemperError | None = None
    for value in axis.some_values:
        try:
            return configure({path: value})
        except TemperError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _note_slip(goal: Goal, result: Step, store: Store, console: "Console") -> None:
    """Say so if no artifact of the result's step has the metric, but one of nearly that name. It
    may be right: a setting or a change of code can add metrics."""
    known = comparable_metrics(Catalog(store).history(result.name))
    slip = difflib.get_close_matches(goal.metric, known, n=1, cutoff=_SLIP)
    if slip and goal.metric not in known:
        text = f"note: no {result.name} in {store.url} has {goal.metric} yet; is {slip[0]} meant?"
        console.print(text, markup=False, soft_wrap=True)


def _require_logs_here(store: Store, launcher: "LauncherConfig | None") -> None:
    """Refuse early stopping if this machine cannot see the values, which are in scratch folders."""
    elsewhere = [] if launcher is None else [kind for kind in launcher.use if kind != "local"]
    if elsewhere and not store.is_local:
        raise TemperError(
            f"--stop-on reads what steps have logged in their scratch, and a step that runs on "
            f"{elsewhere[0]} has that on another machine; use a store on a disk that all machines "
            "share, or leave --stop-on out"
        )


@dataclass
class _Tuner:
    """Runs trials until the study is complete."""

    study: Study
    configure: Configure
    store: Store
    jobs: int
    launcher: "LauncherConfig | None"
    console: "Console"
    sinks: Collection[str] = ()

    def __post_init__(self) -> None:
        self.trials: list[Trial] = []
        self._roots: dict[int, Step] = {}
        self._labels: list[str] = []

    def tuned(self) -> "Tuned":
        try:
            while self.add_batch():
                self._climb()
        except KeyboardInterrupt:
            self._show_done()
            raise
        self._require_some()
        made = self._finish(self._all("done"))  # all are cached; this writes the study's run record
        from pipeline.tuning.summary import Tuned

        return Tuned(self.study, self.trials, made)

    def add_batch(self) -> list[Trial]:
        """Add the next trials; none if there are enough."""
        before = len(self.trials)
        for point in ask(self.study, self.trials):
            self._add(point)
        return self.trials[before:]

    def planned(self) -> dict[str, Step]:
        """The results of the first trials, by their labels; those of others may depend on them."""
        batch = self.add_batch()
        self._require_some()
        return {self._label(t): self._roots[t.number] for t in batch if not t.has_failed}

    def _show_done(self) -> None:
        """Show the trials that are done, for a study that is interrupted."""
        resolver = Resolver(Catalog(self.store))
        for trial in self._all("stopped"):
            made = None
            for above in topological([self._roots[trial.number]]):
                made = resolver.artifact(above)
            if made is not None:
                with contextlib.suppress(NoMetric):
                    trial.value = self._value(Made(made, self.store))
        from pipeline.tuning.summary import Tuned

        if done := self._all("done"):
            self.console.print(Tuned(self.study, done, {}))
        text = f"{len(done)} of {self.study.size} trials are done; the same command goes on"
        self.console.print(text, highlight=False)

    def _add(self, point: Mapping[str, Any]) -> None:
        """Add a trial, even for a point that occurred before: its steps are cached. It fails if the
        experiment refuses its values."""
        values = {path: self.study.space[path].value(drawn) for path, drawn in point.items()}
        shown = shown_names([path.replace("/", ".") for path in values])
        named = zip(shown.values(), values.values(), strict=True)
        label = " ".join(f"{name}={value_text(value)}" for name, value in named)
        number = len(self.trials)
        self._labels.append(f"{label} #{number}" if label in self._labels else label)
        self.trials.append(trial := Trial(number, point, values))
        try:
            self._roots[number] = self._root(values).named(label)
        except TemperError as error:
            self._fail(trial, str(error))

    def _root(self, values: Mapping[str, Any]) -> Step:
        """The step that makes the result of a trial."""
        results, owner = self.configure(values), self.study.goal.owner
        if owner not in results:
            raise TemperError(f"with these settings, the experiment has no result {owner}")
        return results[owner]

    def _fail(self, trial: Trial, why: str) -> None:
        trial.has_failed = True
        text = f"trial #{trial.number} ({self._label(trial)}) fails: {why}"
        self.console.print(visible(text), style="red", markup=False, soft_wrap=True)

    def _all(self, *states: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.state in states]

    def _climb(self) -> None:
        """Run trials from rung to rung, and those that pass the last rung to their end."""
        halving = self.study.halving
        rungs = () if halving is None else halving.rungs
        for rung, at in enumerate(rungs):
            assert halving is not None
            waiting = [t for t in self._all("stopped") if t.rung == rung and at not in t.held_out]
            is_known = any(trial.held_out for trial in self.trials)
            self._run(waiting, is_known, partial(self._take_to, halving, at))
            promote(halving, self.trials, rung)
        ready = [t for t in self._all("stopped") if t.rung == len(rungs)]
        is_known = any(trial.value is not None for trial in self.trials)
        self._run(ready, is_known, self._finish)

    def _run(
        self, trials: Sequence[Trial], is_known: bool, some: Callable[[Sequence[Trial]], object]
    ) -> None:
        """Run all trials at once if the metric is known to exist. Otherwise first as many as may
        run at once: if they do not have the metric, no further trial runs in vain."""
        count = len(trials) if is_known else self.jobs
        for group in filter(None, (trials[:count], trials[count:])):
            some(group)

    def _take_to(self, halving: Halving, at: int, trials: Sequence[Trial]) -> None:
        """Run trials until their values at a rung are known."""
        lacking = self._look(halving, at, trials)
        unknown = [t for t in trials if at not in t.held_out and t.number not in lacking]
        if unknown:
            self._say(unknown, f"to step {at} of {halving.goal.owner}")
            watched = {self._label(trial): self._watched(halving, trial) for trial in unknown}
            pause = Pause(halving.goal.metric, at)
            self._advance(watched, {step.fingerprint: pause for step in watched.values()})
            lacking |= self._look(halving, at, unknown)
        self._fail_without(lacking, any(trial.held_out for trial in self.trials))
        for trial in trials:
            trial.has_failed = at not in trial.held_out

    def _watched(self, halving: Halving, trial: Trial) -> Step:
        """The step that logs the value: the last of its name before the result."""
        steps = topological([self._roots[trial.number]])
        return next(s for s in reversed(steps) if s.name == halving.goal.owner)

    def _look(self, halving: Halving, at: int, trials: Sequence[Trial]) -> dict[int, str]:
        """Read the values at a rung from the store, as far as they exist.

        Returns:
            why trials that have ended have none, by number.
        """
        resolver = Resolver(Catalog(self.store))
        lacking: dict[int, str] = {}
        for trial in trials:
            log, has_ended = self._log(self._watched(halving, trial), resolver)
            value_of = _final_value if has_ended else _known_value
            try:
                if (value := value_of(log, halving.goal, at)) is not None:
                    trial.held_out[at] = value
            except NoMetric as error:
                lacking[trial.number] = str(error)
        return lacking

    def _log(self, step: Step, resolver: Resolver) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """The log of a step, and whether it is complete."""
        made = None
        for above in topological([step]):  # a key depends on the digests of its inputs
            made = resolver.artifact(above)
        if made is not None and (log := Made(made, self.store).records(METRICS)):
            return log, True
        resolved = resolver.key_and_recipe(step)  # also if the artifact's data is gone
        log = unfinished_log(self.store, step.name, resolved[0]) if resolved else []
        return log, False

    def _finish(self, trials: Sequence[Trial]) -> dict[str, Made]:
        if unknown := [trial for trial in trials if trial.value is None]:
            self._say(unknown, "to the end")
        made = self._advance({self._label(t): self._roots[t.number] for t in trials}, {})
        lacking: dict[int, str] = {}
        for trial in trials:
            result = made.get(self._label(trial))
            trial.has_failed = result is None
            try:
                trial.value = None if result is None else self._value(result)
            except NoMetric as error:
                lacking[trial.number] = str(error)
        self._fail_without(lacking, any(trial.value is not None for trial in self.trials))
        return made

    def _fail_without(self, lacking: Mapping[int, str], is_known: bool) -> None:
        """Fail trials without the metric, which others have.

        Raises:
            NoMetric: no trial has it.
        """
        for number, why in lacking.items():
            if not is_known:
                raise NoMetric(why)
            self._fail(self.trials[number], why)

    def _value(self, result: Made) -> float:
        metric = self.study.goal.metric
        value = result.metrics.get(metric)
        if is_interval(value):
            value = value["value"]
        if not is_number(value):
            known = [n for n, v in result.metrics.items() if is_number(v) or is_interval(v)]
            given = metric in result.metrics and f"{metric} is {reprlib.repr(value)}"
            raise NoMetric(
                f"--metric {self.study.goal}: {self.study.goal.owner} has no number of this name; "
                f"{given or hint(metric, known)}"
            )
        return float(value)

    def _advance(self, roots: Mapping[str, Step], pauses: Mapping[str, Pause]) -> dict[str, Made]:
        if not roots:
            return {}
        return advance(
            roots, self.store, pauses, self.jobs, self.console, self.launcher, self.sinks
        )

    def _require_some(self) -> None:
        if all(trial.has_failed for trial in self.trials):
            raise TemperError(
                f"tune: every trial failed ({len(self.trials)}); their errors are printed above"
            )

    def _say(self, trials: Sequence[Trial], what: str) -> None:
        numbers = ", ".join(f"#{trial.number}" for trial in trials)
        self.console.print(f"\n[bold]trials {numbers}[/]: {what}", highlight=False)

    def _label(self, trial: Trial) -> str:
        return self._labels[trial.number]


def _known_value(log: Sequence[Mapping[str, Any]], goal: Goal, at: int) -> float | None:
    """The first value in a log at a rung or later; ``None`` if there is none."""
    values = (record.get(goal.metric) for record in log if record.get("step", 0) >= at)
    return next((float(value) for value in values if is_number(value)), None)


def _final_value(log: Sequence[Mapping[str, Any]], goal: Goal, at: int) -> float:
    """The value of a step that has ended: as at a rung, or its last value if it ended before the
    rung.

    Raises:
        NoMetric: it has logged no such value.
    """
    values = [record[goal.metric] for record in log if is_number(record.get(goal.metric))]
    if not values:
        known = dict.fromkeys(n for record in log for n, v in record.items() if is_number(v))
        raise NoMetric(
            f"--stop-on {goal}: {goal.owner} has logged no such value; "
            f"{hint(goal.metric, [*known])} "
            "(a held-out value needs held-out data and the setting eval_every_steps)"
        )
    value = _known_value(log, goal, at)
    return float(values[-1]) if value is None else value
