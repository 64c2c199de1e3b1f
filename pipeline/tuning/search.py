"""Chooses the next trials, and the trials that continue, from results so far and a seed.

Trials are chosen in *batches*. Those of a batch do not depend on each other's results; the next
batch does (``tpe``). With *halving*, all trials of a batch run to the first rung: a number of
updates after which their held-out values are compared. The best part of all trials so far continues
to the next rung, and from the last rung to the end. This is ASHA (Li et al. 2020, *A System for
Massively Parallel Hyperparameter Tuning*) in batches; with a single batch it is successive halving
(Jamieson and Talwalkar 2016). The result does not depend on clocks or on the order in which trials
finish: the same seed gives the same trials, whatever the store contains and however many run at
once.
"""

import itertools
import math
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import TemperError
from pipeline.text import hint
from pipeline.tuning.space import Space, require_optuna

SAMPLERS = ("tpe", "random", "grid")
MOST_TRIALS = 1_000_000
_FALLS = re.compile(r"(.*[/_])?(\w*loss|kl|perplexity)|(.*/|eval_)?loss/.*")
"""Names of metrics that are minimised by default."""


@dataclass(frozen=True)
class Goal:
    """A number to maximise or minimise: a metric of a result, or of a running step."""

    owner: str
    metric: str
    minimize: bool

    @classmethod
    def parse(cls, text: str, owners: Collection[str], option: str) -> "Goal":
        """Parse ``OWNER.METRIC``, with ``:min`` or ``:max``; a single possible owner may be left
        out.

        Args:
            owners: the possible names of owners.
            option: the command line option with the text, for errors.

        Raises:
            TemperError: there is no such owner.
        """
        if not isinstance(text, str):
            raise TemperError(f"{option} {text}: give text, as in 'RESULT.METRIC'")
        name, colon, direction = text.rpartition(":")
        if colon and direction not in ("min", "max"):
            raise TemperError(f"{option} {text}: it ends with :min or :max, or without")
        name = name if colon else text
        for owner in sorted(owners, key=len, reverse=True):
            if name.startswith(f"{owner}."):
                metric = name.removeprefix(f"{owner}.")
                break
        else:
            if len(owners) > 1:
                known = [*owners]
                owner, _, metric = name.rpartition(".")
                if name in owners:
                    raise TemperError(f"{option} {text}: name the metric too: {name}.METRIC")
                raise TemperError(
                    f"{option} {text}: name its owner, as in {known[-1]}.{metric}; "
                    f"{hint(owner, known)}"
                )
            (owner,), metric = owners, name
        falls = _FALLS.fullmatch(metric) is not None
        return cls(owner, metric, direction == "min" if colon else falls)

    def rank(self, value: float) -> float:
        """A number that is less for a better value; NaN is worst."""
        if math.isnan(value):
            return math.inf
        return value if self.minimize else -value

    def __str__(self) -> str:
        return f"{self.owner}.{self.metric}"


@dataclass(frozen=True)
class Halving:
    """The rules of early stopping.

    Attributes:
        goal: the value that is compared, which a running step logs.
        rungs: the numbers of updates after which it is compared, in rising order.
        reduction: one trial in so many continues.
    """

    goal: Goal
    rungs: Sequence[int]
    reduction: int = 2

    def __post_init__(self) -> None:
        counts = [at for at in self.rungs if type(at) is int]
        ascending = all(a < b for a, b in itertools.pairwise((0, *counts)))
        if not counts or [*self.rungs] != counts or not ascending:
            raise TemperError(
                f"--rungs {','.join(map(str, self.rungs)) or 'is missing'}: after how many updates "
                f"are trials compared by {self.goal}? Give rising numbers, as in --rungs 10,20"
            )
        if self.reduction < 2:
            raise TemperError(f"--reduction {self.reduction}: one trial in 2 or more must continue")


@dataclass(frozen=True)
class Study:
    """The definition of a search.

    Attributes:
        trials: the largest number of trials.
        batch: how many trials are chosen at once. It affects what the search finds; the number of
            trials that run at once does not.
    """

    space: Space
    goal: Goal
    trials: int
    sampler: str = "tpe"
    seed: int = 0
    batch: int | None = None
    halving: Halving | None = None

    def __post_init__(self) -> None:
        if not self.space:
            raise TemperError(
                "tune: no setting varies; give some several values, as in dpo.loss.beta=0.1,0.3 or "
                "'dpo.loss.beta=interval(0.1,1.0)'"
            )
        if self.sampler not in SAMPLERS:
            raise TemperError(f"--sampler {self.sampler}: known: {', '.join(SAMPLERS)}")
        batch = 1 if self.batch is None else self.batch
        for option, value, low, high in (
            ("trials", self.trials, 1, MOST_TRIALS),
            ("batch", batch, 1, MOST_TRIALS),
            ("seed", self.seed, 0, 2**32 - 1),
        ):
            if type(value) is not int or not low <= value <= high:
                raise TemperError(f"--{option} {value}: give a whole number from {low} to {high}")
        endless = [path for path, axis in self.space.items() if not axis.choices]
        if self.sampler == "grid" and endless:
            raise TemperError(
                f"--sampler grid: {endless[0]} is an interval; give it values, as in 0.1,0.3"
            )

    @property
    def size(self) -> int:
        """The number of trials, if none is refused."""
        return min(self.trials, self._combinations) if self.sampler == "grid" else self.trials

    @property
    def _combinations(self) -> int:
        return math.prod(len(axis.choices) for axis in self.space.values())

    @property
    def left_out(self) -> str:
        """Which combinations of a grid have no trial; empty if all have one."""
        if self.sampler != "grid" or self.trials >= self._combinations:
            return ""
        last = [*self.space][-1]
        return (
            f"the grid has {self._combinations} combinations, and --trials {self.trials} makes the "
            f"first {self.trials}, in which {last} varies fastest; give --trials "
            f"{self._combinations} for all, or --sampler random for a sample of them"
        )

    @property
    def in_batch(self) -> int:
        """The number of trials chosen at once: all, if the sampler does not use results."""
        return self.batch or (4 if self.sampler == "tpe" else self.trials)


@dataclass
class Trial:
    """One point of the space, and its results so far.

    Attributes:
        drawn: the drawn values in Optuna's form, by path.
        settings: the values of settings that they stand for, by path.
        held_out: its value at each rung that it has reached.
        rung: the number of rungs that it has passed.
        value: its value of the goal at its end.
    """

    number: int
    drawn: Mapping[str, Any]
    settings: Mapping[str, Any]
    held_out: dict[int, float] = field(default_factory=dict)
    rung: int = 0
    value: float | None = None
    has_failed: bool = False

    @property
    def state(self) -> str:
        if self.has_failed:
            return "failed"
        return "stopped" if self.value is None else "done"


def ask(study: Study, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The points of the next batch; fewer or none if the grid or the number of trials is
    exhausted."""
    count = min(study.in_batch, study.trials - len(trials))
    if study.sampler == "grid":
        paths = [*study.space]
        values = [[*study.space[path].choices] for path in paths]
        points = itertools.islice(itertools.product(*values), len(trials), len(trials) + count)
        return [dict(zip(paths, point, strict=True)) for point in points]
    return _asked(study, trials, count)


def _asked(study: Study, trials: Sequence[Trial], count: int) -> list[dict[str, Any]]:
    """The points that Optuna's sampler chooses, from these trials and the seed alone."""
    optuna = require_optuna()
    seed = (study.seed + len(trials)) % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if study.sampler == "tpe":
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        else:
            sampler = optuna.samplers.RandomSampler(seed=seed)
        direction = "minimize" if study.goal.minimize else "maximize"
        optuna_study = optuna.create_study(direction=direction, sampler=sampler)
        distributions = {path: axis.distribution for path, axis in study.space.items()}
        optuna_study.add_trials([_as_optuna_trial(study, trial, distributions) for trial in trials])
        asked = [optuna_study.ask(distributions) for _ in range(count)]
    return [{p: study.space[p].rounded(v) for p, v in trial.params.items()} for trial in asked]


def _as_optuna_trial(study: Study, trial: Trial, distributions: Mapping[str, Any]) -> Any:
    optuna = require_optuna()
    states = optuna.trial.TrialState
    state = {"done": states.COMPLETE, "stopped": states.PRUNED, "failed": states.FAIL}[trial.state]
    flip = study.halving is not None and study.halving.goal.minimize != study.goal.minimize
    return optuna.trial.create_trial(
        state=state,
        value=trial.value,
        params=dict(trial.drawn),
        distributions=dict(distributions),
        intermediate_values={at: -v if flip else v for at, v in trial.held_out.items()},
    )


def promote(halving: Halving, trials: Sequence[Trial], rung: int) -> None:
    """Let the best of all trials that have reached a rung pass it. A trial that has passed stays
    so."""
    at = halving.rungs[rung]
    come = [trial for trial in trials if at in trial.held_out]
    come.sort(key=lambda trial: (halving.goal.rank(trial.held_out[at]), trial.number))
    for trial in come[: max(1, len(come) // halving.reduction)]:
        trial.rung = max(trial.rung, rung + 1)
