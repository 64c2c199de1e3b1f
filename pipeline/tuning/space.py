"""The space of a study: the settings that vary, and their possible values.

On the command line, axes have the syntax of Hydra's sweepers:

    dpo.loss.beta=0.1,0.3,1.0                                  any of these
    dpo/loss=choice(dpo,ipo)                                   the same
    dpo.optimizer.learning_rate=tag(log,interval(1e-5,1e-3))   any number, log-uniform
    dpo.batch_size=int(interval(8,64))                         any whole number in the interval
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
"""Drawn numbers are rounded to so many digits, so that they are the same on every machine."""


@dataclass(frozen=True)
class Axis:
    """The possible values of one setting.

    Attributes:
        distribution: Optuna's distribution; if there are ``choices``, over their names.
        choices: the values to choose from, by name.
    """

    distribution: "BaseDistribution"
    choices: Mapping[str, Any] = field(default_factory=dict)

    def rounded(self, drawn: Any) -> Any:
        """A drawn value with few digits, still within its bounds."""
        if not isinstance(drawn, float):
            return drawn
        bounds: Any = self.distribution
        value = float(f"{drawn:.{SIGNIFICANT_DIGITS}g}")
        return min(max(value, bounds.low), bounds.high)

    @property
    def some_values(self) -> list[Any]:
        """All choices, or the ends of an interval."""
        bounds: Any = self.distribution
        return [*self.choices.values()] if self.choices else [bounds.low, bounds.high]

    def value(self, drawn: Any) -> Any:
        return self.choices[drawn] if self.choices else drawn


Space = Mapping[str, Axis]
"""The axis of each setting, by path."""


def space_of(axes: Mapping[str, Any]) -> dict[str, Axis]:
    """A space from Python values.

    Raises:
        TemperError: there are no axes by path, or one is neither a list of values nor a
            distribution.
    """
    distributions = require_optuna().distributions
    if not isinstance(axes, Mapping):
        kind = type(axes).__name__
        raise TemperError(f"tune: the space is a {kind}; give a dict, as {{'dpo.loss.beta': […]}}")
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
    """An axis with a list of values.

    Raises:
        TemperError: the list is empty, or two values have the same name.
    """
    named = {value_text(value): value for value in values}
    if not named or len(named) < len(values):
        raise TemperError(f"tune: {path} has {len(values)} values, {len(named)} of them different")
    return Axis(require_optuna().distributions.CategoricalDistribution([*named]), named)


def parsed(overrides: Sequence[str]) -> tuple[dict[str, Axis], list[str]]:
    """Split settings of a command line into axes and fixed settings.

    Raises:
        TemperError: Hydra cannot parse a setting, or a setting is given twice.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    axes: dict[str, Axis] = {}
    fixed: list[str] = []
    names: list[str] = []
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
        names.append(override.get_key_element().lstrip("+~"))
    if twice := [name for name in names if names.count(name) > 1]:
        raise TemperError(f"tune: {twice[0]} stands there twice; leave one of them out")
    return axes, fixed


def _axis(override: Any) -> Axis:
    """An axis from Hydra's parsed form."""
    from hydra.core.override_parser.types import Glob

    distributions = require_optuna().distributions
    path, sweep = override.get_key_element(), override.value()
    # these depend on which files there are, and on chance that no seed governs
    if isinstance(sweep, Glob) or getattr(sweep, "shuffle", False):
        raise TemperError(f"tune: {override.input_line}: list its values, as in {path}=A,B,C")
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
    """A value as short text that distinguishes it from others."""
    if isinstance(value, enum.Enum):
        return str(value.name)
    short = f"{value:.{SIGNIFICANT_DIGITS}g}" if isinstance(value, float) else ""
    return short if short and float(short) == value else str(value)


def require_optuna() -> Any:
    """Import Optuna, which chooses trials.

    Raises:
        TemperError: it is not installed.
    """
    require_installed(["optuna"], "tune")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
