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
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.base.extras import require_installed

SIGNIFICANT_DIGITS = 6
"""Drawn numbers are rounded to so many digits, so that they are the same on every machine."""
Space = Mapping[str, Any]
"""The distribution of each setting, Optuna's, by path."""


def space_of(axes: Mapping[str, Any]) -> Space:
    """A space from Python values.

    Raises:
        TemperError: there are no axes by path, or one is neither a list of values nor a
            distribution.
    """
    base = require_optuna().distributions.BaseDistribution
    if not isinstance(axes, Mapping):
        kind = type(axes).__name__
        raise TemperError(f"tune: the space is a {kind}; give a dict, as {{'dpo.loss.beta': […]}}")
    for path, axis in axes.items():
        if not isinstance(axis, base | Sequence) or isinstance(axis, str):
            raise TemperError(
                f"tune: {path}={axis!r}; give a list of values, or a distribution as "
                "optuna.distributions.FloatDistribution(1e-5, 1e-3, log=True)"
            )
    return {p: axis if isinstance(axis, base) else choice(p, axis) for p, axis in axes.items()}


def choice(path: str, values: Sequence[Any]) -> Any:
    """An axis with a list of values.

    Raises:
        TemperError: the list is empty, or two values are equal.
    """
    different = sum(values.index(value) == number for number, value in enumerate(values))
    if not values or different < len(values):
        raise TemperError(f"tune: {path} has {len(values)} values, {different} of them different")
    with warnings.catch_warnings():  # of values that cannot lie in a database, where none shall
        warnings.simplefilter("ignore", UserWarning)
        return require_optuna().distributions.CategoricalDistribution([*values])


def choices(distribution: Any) -> Sequence[Any]:
    """The values of an axis; none if it is an interval."""
    return getattr(distribution, "choices", ())


def some_values(distribution: Any) -> Sequence[Any]:
    """All values of an axis, or the ends of an interval."""
    return choices(distribution) or [distribution.low, distribution.high]


def rounded(drawn: Any, distribution: Any) -> Any:
    """A drawn number with few digits that lies within its bounds; of a list, the value itself."""
    if choices(distribution) or not isinstance(drawn, float):
        return drawn
    few = float(f"{drawn:.{SIGNIFICANT_DIGITS}g}")
    return min(max(few, distribution.low), distribution.high)


def parsed(overrides: Sequence[str]) -> tuple[Space, list[str]]:
    """Split settings of a command line into axes and fixed settings.

    Raises:
        TemperError: Hydra cannot parse a setting, or a setting is given twice.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    axes: dict[str, Any] = {}
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


def _axis(override: Any) -> Any:
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
    try:
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("both ends must be finite")
        if isinstance(low, int) and isinstance(high, int):
            return distributions.IntDistribution(low, high, log=log)
        return distributions.FloatDistribution(float(low), float(high), log=log)
    except ValueError as error:  # Optuna's
        raise TemperError(f"tune: {override.input_line}: {error}") from None


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
