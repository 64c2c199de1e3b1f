"""Validation of config dataclasses."""

from enum import StrEnum
from typing import Any


def require(holds: bool, rule: str, value: object) -> None:
    """Raises ValueError with `rule`, which names the field, and the value that breaks it."""
    if not holds:
        raise ValueError(f"{rule}, got {value!r}")


def require_count(config: Any, *names: str, least: int = 1, or_null: bool = False) -> None:
    """Raises ValueError unless the fields are whole numbers from `least` on, or perhaps null."""
    for name in names:
        value = getattr(config, name)
        if not (or_null and value is None):
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            rule = f"{name} must be a whole number of at least {least}"
            require(is_whole and value >= least, rule + (", or null" if or_null else ""), value)


def set_choice(config: Any, name: str, choices: type[StrEnum]) -> None:
    """Makes the field of a frozen config one of `choices`, which may have been named by its value.

    A string that is left a string is unequal to every choice where identity is asked for. Raises
    ValueError, naming what there is, for a value that names none.
    """
    value = getattr(config, name)
    require(value in list(choices), f"{name} must be one of {', '.join(choices)}", value)
    object.__setattr__(config, name, choices(value))
