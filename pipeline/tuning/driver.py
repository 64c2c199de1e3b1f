"""``tune``: runs the trials of a study, each to a rung or to its end.

A trial that is stopped early has no artifact, so it can never be taken for a finished one. Its
training keeps its checkpoint and its log in scratch. A later run with that config, in a study or
not, resumes from there.
"""

import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.base.errors import TemperError
from pipeline.base.text import hint, visible
from pipeline.dag.grid import replaced, require_apart, require_config, require_field, shown_names
from pipeline.dag.step import Step
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
from pipeline.show.artifact_handle import Made
from pipeline.show.metrics import comparable_metrics, is_interval, is_number
from pipeline.show.metrics_log import METRICS, unfinished_log
from pipeline.show.sinks import require_sinks
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.tuning.goal import Goal, Options
from pipeline.tuning.space import Space, rounded, some_values, space_of, value_text
from pipeline.tuning.summary import Trial, Tuned
from pipeline.wire.spec import Pause

if TYPE_CHECKING:
    import optuna
    from rich.console import Console

    from pipeline.launchers.config import LauncherConfig

TUNING = "TEMPER_TUNING"
"""Set by ``temper tune`` for a script: the options of a study, as JSON."""
Config = TypeVar("Config")
Configure = Callable[[Mapping[str, Any]], Mapping[str, Step]]
"""Makes the results of the experiment for values of settings, by path."""


def tune(
    build: Callable[[Config], Mapping[str, Step]],
    config: Config,
    space: Mapping[str, Any],
    metric: str,
    *,
    trials: int,
    sampler: "str | optuna.samplers.BaseSampler" = "tpe",
    seed: int = 0,
    batch: int | None = None,
    stop_on: str | None = None,
    rungs: Sequence[int] = (),
    reduction: int = 2,
    pruner: "str | optuna.pruners.BasePruner" = "halving",
    store: str | Store | None = None,
    jobs: int = 1,
    launcher: "LauncherConfig | None" = None,
    console: "Console | None" = None,
    sinks: Collection[str] = (),
) -> Tuned:
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
        sampler: ``tpe`` (Bergstra et al. 2011), ``random``, ``grid``, or one of Optuna's samplers.
        seed: the same seed gives the same trials; one of your own samplers has its own.
        batch: how many trials are chosen at once, before the results of any. By default 4 where
            earlier results bear on later trials, otherwise all.
        stop_on: ``STEP.METRIC``, such as ``train_dpo.eval_loss``: at each rung, the pruner stops
            trials by this value.
        rungs: the numbers of updates of that step after which trials are compared.
        reduction: one trial in so many continues.
        pruner: ``halving`` (Li et al. 2020), ``hyperband`` (Li et al. 2018), ``median``, or one of
            Optuna's pruners.
        store, jobs, launcher, sinks: as for :func:`pipeline.run`.

    Raises:
        TemperError: a setting, a result or a metric does not exist, or every trial failed.
    """
    refuse_in_worker("tune")
    require_config(config, "tune")
    found = space_of(space)
    for path in found:
        require_field(config, path)

    def configure(values: Mapping[str, Any]) -> Mapping[str, Step]:
        changed: Any = config
        for path, value in values.items():
            changed = replaced(changed, path, value, f"{path}={value_text(value)}")
        return built(build, changed)

    options = Options(metric, trials, sampler, seed, batch, stop_on, rungs, reduction, pruner)
    return search(
        configure,
        found,
        options,
        visible_to_workers(store),
        jobs=jobs,
        launcher=launcher,
        console=console,
        sinks=sinks,
    )


@then_look_again()  # at the end only: all trials have the same code and files
def search(configure: Configure, space: Space, options: Options, store: Store, **how: Any) -> Tuned:
    """Like :func:`tune`, for settings that ``configure`` interprets."""
    return _Search(configure, space, options, store, **how).tuned()


def first_trials(
    configure: Configure, space: Space, options: Options, store: Store
) -> tuple[Mapping[str, Step], int]:
    """The results of the trials with which a study begins, and how many trials it has."""
    study = _Search(configure, space, options, store)
    return study.planned(), study.size


class NoMetric(TemperError):
    """A trial has ended without a metric that the study needs."""


@dataclass
class _Search:
    """A study, and its trials so far."""

    configure: Configure
    space: Space
    options: Options
    store: Store
    jobs: int = 1
    launcher: "LauncherConfig | None" = None
    console: Any = None
    sinks: Collection[str] = ()
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        from pipeline.show.terminal import make_console

        self.console = self.console or make_console()
        require_apart(self.space, "tune")
        points = self.options.size(self.space)
        self.size = min(self.options.trials, points)
        results = _any_results(self.configure, self.space)
        check_request(results, self.jobs, self.launcher)
        check_names(sinks=self.sinks)
        require_sinks([*self.sinks])
        self.goal = Goal.parse(self.options.metric, results, "--metric")
        self.stop: Goal | None = None
        if self.options.stop_on is not None:
            steps = {step.name for step in topological([results[self.goal.owner]])}
            self.stop = Goal.parse(self.options.stop_on, steps, "--stop-on")
            self._require_logs_here()
        self._note_new_metric(results[self.goal.owner].name)
        self.study = self.options.study(self.goal)
        if self.size < points:
            text = f"note: the grid has {points} combinations; --trials {self.size} leaves some out"
            self.console.print(text, markup=False, soft_wrap=True)
        self._grid = self.options.grid(self.space)
        self._asked: list[Any] = []  # Optuna's trials
        self._roots: dict[int, Step] = {}

    def _note_new_metric(self, step: str) -> None:
        """Say so before a trial runs if no artifact has the metric yet. It may be right: a setting
        or a change of code can add metrics."""
        known = comparable_metrics(Catalog(self.store).history(step))
        if known and self.goal.metric not in known:
            url, metric = self.store.url, self.goal.metric
            text = f"note: no {step} in {url} has {metric} yet; {hint(metric, known)}"
            self.console.print(text, markup=False, soft_wrap=True)

    def _require_logs_here(self) -> None:
        """Refuse early stopping if this machine cannot see the values, which are in scratch."""
        elsewhere = {*(self.launcher.use if self.launcher else ())} - {"local"}
        if elsewhere and not self.store.is_local:
            raise TemperError(
                "--stop-on reads what steps have logged in their scratch, and a step that runs on "
                f"{min(elsewhere)} has that on another machine; use a store on a disk that all "
                "machines share, or leave --stop-on out"
            )

    # --- the study -------------------------------------------------------------------------------

    def tuned(self) -> Tuned:
        try:
            while self.add_batch():
                for at in self.options.rungs:
                    self._bring(self._all("open"), at)
                    self._prune(at)
                self._bring(self._all("open"), None)
                for trial in self._all("open"):
                    self._end(trial, "done", trial.value)
        except KeyboardInterrupt:
            self._show_done()
            raise
        self._require_some()
        made = self._advance(self._all("done"))  # all are cached; this writes the run's record
        return self._summary(self.trials, made)

    def _summary(self, trials: Sequence[Trial], made: Mapping[str, Made]) -> Tuned:
        return Tuned(self.goal, self.stop, trials, made, self.study)

    def planned(self) -> dict[str, Step]:
        """The results of the first trials, by their labels; those of others may depend on them."""
        self.add_batch()
        self._require_some()
        return {trial.label: self._roots[trial.number] for trial in self._all("open")}

    def add_batch(self) -> bool:
        """Add the next trials, if there are not enough."""
        count = min(self.options.in_batch, self.size - len(self.trials))
        if count < 1:
            return False
        for asked in [self._ask() for _ in range(count)]:
            self._add(asked)
        return True

    def _ask(self) -> Any:
        if self.options.sampler == "grid":
            self.study.enqueue_trial(dict(zip(self.space, next(self._grid), strict=True)))
        self._asked.append(self.study.ask(dict(self.space)))
        return self._asked[-1]

    def _add(self, asked: Any) -> None:
        """Add a trial, even for a point that occurred before: its steps are cached. It fails if the
        experiment refuses its values."""
        values = {path: rounded(drawn, self.space[path]) for path, drawn in asked.params.items()}
        shown = shown_names([path.replace("/", ".") for path in values])
        named = zip(shown.values(), values.values(), strict=True)
        label = " ".join(f"{name}={value_text(value)}" for name, value in named)
        if any(label == trial.label for trial in self.trials):
            label = f"{label} #{asked.number}"
        self.trials.append(trial := Trial(asked.number, label, values))
        try:
            results = self.configure(values)
            if self.goal.owner not in results:
                raise TemperError(f"with these settings, there is no result {self.goal.owner}")
            self._roots[trial.number] = results[self.goal.owner].named(label)
        except TemperError as error:
            self._fail(trial, str(error))

    def _prune(self, at: int) -> None:
        """Let Optuna stop trials at a rung: one after the other, in the order of their numbers."""
        assert self.stop is not None
        sign = 1 if self.stop.minimize == self.goal.minimize else -1
        for trial in (waiting := self._all("open")):
            self._asked[trial.number].report(sign * trial.held_out[at], at)
        for trial in waiting:
            if self._asked[trial.number].should_prune():
                self._end(trial, "stopped")

    def _end(self, trial: Trial, state: str, value: float | None = None) -> None:
        from optuna.trial import TrialState

        states = {"stopped": TrialState.PRUNED, "failed": TrialState.FAIL}
        trial.state = state
        self.study.tell(self._asked[trial.number], value, states.get(state))

    def _fail(self, trial: Trial, why: str) -> None:
        self._end(trial, "failed")
        if why:
            text = f"trial #{trial.number} ({trial.label}) fails: {why}"
            self.console.print(visible(text), style="red", markup=False, soft_wrap=True)

    def _all(self, state: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == state]

    def _require_some(self) -> None:
        if len(self._all("failed")) == len(self.trials):
            raise TemperError(
                f"tune: every trial failed ({len(self.trials)}); their errors are printed above"
            )

    def _show_done(self) -> None:
        """Show the trials that are done, for a study that is interrupted."""
        self._look(self._all("open"), None)
        if done := [trial for trial in self.trials if trial.value is not None]:
            self.console.print(self._summary(done, {}))
        text = f"{len(done)} of {self.size} trials are done; the same command goes on"
        self.console.print(text, highlight=False)

    # --- its trials ------------------------------------------------------------------------------

    def _bring(self, trials: Sequence[Trial], at: int | None) -> None:
        """Run trials to a rung, or to their end; then their values are known, or they have failed.

        If no trial has the metric yet, as many run first as may run at once: if these do not have
        it, no further trial runs in vain.

        Raises:
            NoMetric: these do not have it.
        """
        first = trials if self._is_known(at) else trials[: self.jobs]
        for group in filter(None, (first, trials[len(first) :])):
            lacking = self._look(group, at)
            if unfinished := [trial for trial in group if lacking.get(trial.number) == ""]:
                self._run(unfinished, at)
                lacking = self._look(group, at)
            for number, why in lacking.items():
                if why and not self._is_known(at):
                    raise NoMetric(why)
                self._fail(self.trials[number], why)

    def _is_known(self, at: int | None) -> bool:
        return any(t.value is not None if at is None else t.held_out for t in self.trials)

    def _run(self, trials: Sequence[Trial], at: int | None) -> None:
        numbers = ", ".join(f"#{trial.number}" for trial in trials)
        where = "the end" if at is None else f"step {at} of {self.stop and self.stop.owner}"
        self.console.print(f"\n[bold]trials {numbers}[/]: to {where}", highlight=False)
        self._advance(trials, at)

    def _advance(self, trials: Sequence[Trial], at: int | None = None) -> dict[str, Made]:
        targets = {trial.label: self._target(trial, at) for trial in trials}
        pauses = {}
        if at is not None and self.stop is not None:
            pause = Pause(self.stop.metric, at)
            pauses = {step.fingerprint: pause for step in targets.values()}
        return advance(
            targets, self.store, pauses, self.jobs, self.console, self.launcher, self.sinks
        )

    def _target(self, trial: Trial, at: int | None) -> Step:
        """The step that a trial is brought to: its result, or the step that logs the value at a
        rung, the last of its name before the result."""
        root = self._roots[trial.number]
        if at is None or self.stop is None:
            return root
        return next(s for s in reversed(topological([root])) if s.name == self.stop.owner)

    def _look(self, trials: Iterable[Trial], at: int | None) -> dict[int, str]:
        """Read the values of trials at a rung, or at their end, from the store.

        Returns:
            The numbers of trials without one; with the reason, for those that have ended.
        """
        resolver = Resolver(Catalog(self.store))
        lacking: dict[int, str] = {}
        for trial in trials:
            target = self._target(trial, at)
            found = resolver.artifact(target)
            made = None if found is None else Made(found, self.store)
            try:
                if at is None:
                    value = trial.value = made and _metric(made, self.goal)
                elif (value := self._held_out(made, target, resolver, at)) is not None:
                    trial.held_out[at] = value
                if value is None:
                    lacking[trial.number] = ""
            except NoMetric as error:
                lacking[trial.number] = str(error)
        return lacking

    def _held_out(self, made: Made | None, step: Step, resolver: Resolver, at: int) -> float | None:
        """The first value that a step has logged at a rung or later; of one that ended before the
        rung, its last value.

        Raises:
            NoMetric: it has ended without any.
        """
        assert self.stop is not None
        log = ended = made.records(METRICS) if made else []
        if not ended and (resolved := resolver.key_and_recipe(step)):
            log = unfinished_log(self.store, step.name, resolved[0])  # also if data is gone
        metric = self.stop.metric
        values = [(r.get("step", 0), float(r[metric])) for r in log if is_number(r.get(metric))]
        if ended and not values:
            known = dict.fromkeys(n for record in log for n, v in record.items() if is_number(v))
            raise NoMetric(
                f"--stop-on {self.stop}: {step.name} has logged no such value; "
                f"{hint(metric, [*known])} "
                "(a held-out value needs held-out data and the setting eval_every_steps)"
            )
        last = [value for _, value in values[-1:] if ended]
        return next(iter([value for step, value in values if step >= at] + last), None)


def _metric(result: Made, goal: Goal) -> float:
    """
    Raises:
        NoMetric: the result has no number of this name.
    """
    value = result.metrics.get(goal.metric)
    value = value["value"] if is_interval(value) else value
    if is_number(value):
        return float(value)
    known = [n for n, v in result.metrics.items() if is_number(v) or is_interval(v)]
    given = goal.metric in result.metrics and f"{goal.metric} is {reprlib.repr(value)}"
    raise NoMetric(
        f"--metric {goal}: {goal.owner} has no number of this name; "
        f"{given or hint(goal.metric, known)}"
    )


def _any_results(configure: Configure, space: Space) -> Mapping[str, Step]:
    """The results of a trial, for the names of results and steps; of the config as it is, if the
    experiment refuses these values of settings."""
    try:
        return configure({path: some_values(axis)[0] for path, axis in space.items()})
    except TemperError:
        return configure({})
