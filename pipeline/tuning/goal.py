"""The goal and the options of a search, and Optuna's study for them."""

import copy
import itertools
import math
import random
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.base.errors import TemperError
from pipeline.base.text import hint
from pipeline.tuning.space import Space, choices, require_optuna

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

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
        """Parse ``OWNER.METRIC``, with or without ``:min`` or ``:max``.

        Args:
            owners: the possible names of owners.
            option: the command line option with the text, for errors.

        Raises:
            TemperError: there is no such owner.
        """
        name, colon, direction = str(text).rpartition(":")
        if colon and direction not in ("min", "max"):
            raise TemperError(f"{option} {text}: it ends with :min or :max, or without")
        name = name if colon else str(text)
        owner = max((o for o in owners if name.startswith(f"{o}.")), key=len, default=None)
        if owner is None:
            known = hint(name.rpartition(".")[0] or name, [*owners])
            raise TemperError(f"{option} {text}: name the metric as OWNER.METRIC; {known}")
        metric = name.removeprefix(f"{owner}.")
        falls = direction == "min" if colon else _FALLS.fullmatch(metric) is not None
        return cls(owner, metric, falls)

    def rank(self, value: float) -> float:
        """A number that is less for a better value; NaN is worst."""
        if math.isnan(value):
            return math.inf
        return value if self.minimize else -value

    def __str__(self) -> str:
        return f"{self.owner}.{self.metric}"


@dataclass(frozen=True)
class Options:
    """The options of a search; see :func:`pipeline.tuning.driver.tune`."""

    metric: str
    trials: int
    sampler: "str | BaseSampler" = "tpe"
    seed: int = 0
    batch: int | None = None
    stop_on: str | None = None
    rungs: Sequence[int] = ()
    reduction: int = 2
    pruner: "str | BasePruner" = "halving"

    def __post_init__(self) -> None:
        if self.trials < 1 or (self.batch or 1) < 1:
            raise TemperError("--trials and --batch: give whole numbers from 1 on")
        if (self.stop_on is None) != (not self.rungs):
            raise TemperError(
                "--stop-on STEP.METRIC and --rungs N,N belong together: a metric, and the numbers "
                "of updates after which trials are compared by it"
            )
        grown = [self.rungs[0] * self.reduction**n for n in range(len(self.rungs))]
        if self.pruner in ("halving", "hyperband") and [*self.rungs] != grown:
            raise TemperError(
                f"--rungs {','.join(map(str, self.rungs))}: with --pruner {self.pruner} and "
                f"--reduction {self.reduction} they are {','.join(map(str, grown))}; "
                "--pruner median takes any"
            )

    @property
    def in_batch(self) -> int:
        """The number of trials that begin together: all, if no earlier result bears on them."""
        is_alone = self.sampler in ("random", "grid")
        needs_none = not self.rungs or self.pruner in ("halving", "hyperband")
        return self.batch or (self.trials if is_alone and needs_none else 4)

    def size(self, space: Space) -> int:
        """The number of points to try, of a grid all.

        Raises:
            TemperError: no setting varies, or an axis of a grid is an interval.
        """
        if not space:
            raise TemperError(
                "tune: no setting varies; give some several values, as in dpo.loss.beta=0.1,0.3 or "
                "'dpo.loss.beta=interval(0.1,1.0)'"
            )
        if self.sampler != "grid":
            return self.trials
        if endless := [path for path, axis in space.items() if not choices(axis)]:
            raise TemperError(
                f"--sampler grid: {endless[0]} is an interval; give it values, as in 0.1,0.3"
            )
        return math.prod(len(choices(axis)) for axis in space.values())

    def grid(self, space: Space) -> Iterator[tuple[Any, ...]]:
        """The points of a grid. With early stopping their order is random: if each were better than
        those before it, none would stop."""
        points = itertools.product(*map(choices, space.values()))
        if self.sampler == "grid" and self.rungs:
            random.Random(self.seed).shuffle(points := [*points])
        return iter(points)

    def study(self, goal: Goal) -> "Study":
        """Optuna's study. Its trials depend on the options and on what it is told, and on nothing
        else.

        Raises:
            TemperError: there is no such sampler or pruner, or Optuna refuses its options.
        """
        optuna = require_optuna()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            try:
                return optuna.create_study(
                    study_name="tune",  # it chooses the brackets of Hyperband
                    direction="minimize" if goal.minimize else "maximize",
                    sampler=self._sampler(optuna),
                    pruner=self._pruner(optuna),
                )
            except ValueError as error:
                raise TemperError(f"tune: {error}") from None

    def _sampler(self, optuna: Any) -> Any:
        drawn = optuna.samplers.RandomSampler(seed=self.seed)
        tpe = optuna.samplers.TPESampler(seed=self.seed, constant_liar=True)
        return _named("sampler", self.sampler, {"tpe": tpe, "random": drawn, "grid": drawn})

    def _pruner(self, optuna: Any) -> Any:
        """Optuna counts in updates too. The end of a trial is the last resource of Hyperband, so
        that trials of one of its brackets never stop."""
        pruners, first = optuna.pruners, self.rungs[0] if self.rungs else 1
        last = first * self.reduction ** len(self.rungs)
        halving = pruners.SuccessiveHalvingPruner(first, self.reduction)
        # one more, as the quotient's logarithm is rounded down
        hyperband = pruners.HyperbandPruner(first, last + 1, self.reduction)
        known = {"halving": halving, "hyperband": hyperband, "median": pruners.MedianPruner()}
        return _named("pruner", self.pruner, known)


def _named(option: str, given: Any, known: dict[str, Any]) -> Any:
    """One of ours by name, or the user's own, which keeps its state for the next study."""
    if isinstance(given, str) and given not in known:
        raise TemperError(f"--{option} {given}: {hint(given, [*known])}")
    return known[given] if isinstance(given, str) else copy.deepcopy(given)
