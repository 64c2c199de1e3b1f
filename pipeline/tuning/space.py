"""The space of a study: the settings that vary, and the values that they may have.

On the command line an axis is written as for Hydra's sweepers:

    dpo.loss.beta=0.1,0.3,1.0                                  any of these
    dpo/loss=choice(dpo,ipo)                                   the same
    dpo.optimizer.learning_rate=tag(log,interval(1e-5,1e-3))   any number between, by its logarithm
    dpo.batch_size=int(interval(8,64))                         any whole number between
    seed=range(0,3)                                            0, 1 or 2

In Python it is a list of values, or one of Optuna's distributions.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.errors import TemperError
from pipeline.extras import require_installed

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SIGNIFICANT_DIGITS = 6
"""Of a number that is drawn: enough for a setting, and the same on every machine."""


@dataclass(frozen=True)
class Axis:
    """The values that one setting may have.

    Attributes:
        distribution: Optuna's; over the texts of ``choices`` where there are any.
        choices: the values to choose from, by what they are called.
    """

    distribution: "BaseDistribution"
    choices: Mapping[str, Any] = field(default_factory=dict)

    def rounded(self, drawn: Any) -> Any:
        """A drawn value as it is used: numbers in few digits, still within their bounds."""
        if not isinstance(drawn, float):
            return drawn
        bounds: Any = self.distribution
        value = float(f"{drawn:.{SIGNIFICANT_DIGITS}g}")
        return min(max(value, bounds.low), bounds.high)

    def value(self, drawn: Any) -> Any:
        return self.choices[drawn] if self.choices else drawn


Space = Mapping[str, Axis]
"""By the path of each setting."""


def space_of(axes: Mapping[str, Any]) -> dict[str, Axis]:
    """A space that is written in Python.

    Raises:
        TemperError: an axis is no list of values and no distribution.
    """
    distributions = require_optuna().distributions
    found = {}
    for path, axis in axes.items():
        if isinstance(axis, distributions.BaseDistribution):
            categories: Any = getattr(axis, "choices", None)
            found[path] = Axis(axis) if categories is None else choice(path, categories)
        elif isinstance(axis, Sequence) and not isinstance(axis, str):
            found[path] = choice(path, axis)
        else:
            raise TemperError(
                f"tune: {path}={axis!r}; give a list of values, or a distribution as "
                "optuna.distributions.FloatDistribution(1e-5, 1e-3, log=True)"
            )
    return found


def choice(path: str, values: Sequence[Any]) -> Axis:
    """Any of some values.

    Raises:
        TemperError: there are none, or two are called the same.
    """
    named = {value_text(value): value for value in values}
    if not named or len(named) < len(values):
        raise TemperError(f"tune: {path} has {len(values)} values, {len(named)} of them different")
    return Axis(require_optuna().distributions.CategoricalDistribution([*named]), named)


def parsed(overrides: Sequence[str]) -> tuple[dict[str, Axis], list[str]]:
    """The axes among command-line settings, and the settings that do not vary.

    Raises:
        TemperError: Hydra cannot read one.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    axes, fixed = {}, []
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            reason = " ".join(str(error).split())
            raise TemperError(f"tune: {text} cannot be read: {reason}") from None
        if override.is_sweep_override():
            axes[override.get_key_element()] = _axis(override)
        else:
            fixed.append(text)
    return axes, fixed


def _axis(override: Any) -> Axis:
    """An axis as Hydra has parsed it."""
    distributions = require_optuna().distributions
    path, sweep = override.get_key_element(), override.value()
    if not override.is_interval_sweep():
        return choice(path, [*override.sweep_string_iterator()])
    low, high, log = sweep.start, sweep.end, "log" in sweep.tags
    if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)):
        kind = "numbers above 0" if log else "numbers"
        raise TemperError(f"tune: {path} goes from {low} to {high}; give two {kind}, in order")
    if isinstance(low, int) and isinstance(high, int):
        return Axis(distributions.IntDistribution(low, high, log=log))
    return Axis(distributions.FloatDistribution(float(low), float(high), log=log))


def value_text(value: Any) -> str:
    """A value for people, as short as tells it from others."""
    if isinstance(value, enum.Enum):
        return str(value.name)
    return f"{value:.{SIGNIFICANT_DIGITS}g}" if isinstance(value, float) else str(value)


def require_optuna() -> Any:
    """The library that chooses trials.

    Raises:
        TemperError: it is not installed.
    """
    require_installed(["optuna"], "tune")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
