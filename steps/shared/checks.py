"""Validation of config dataclasses."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


def require(holds: bool, rule: str, value: object) -> None:
    """Raise ValueError unless `holds`. Its text is `rule`, which names the field, and the value."""
    if not holds:
        raise ValueError(f"{rule}, got {value!r}")


def holding(reasons: Mapping[str, bool]) -> list[str]:
    """The reasons that hold."""
    return [reason for reason, holds in reasons.items() if holds]


def require_count(config: Any, *names: str, least: int = 1, or_null: bool = False) -> None:
    """Raise ValueError unless the fields are whole numbers of at least `least` (or None, with
    `or_null`)."""
    for name in names:
        value = getattr(config, name)
        if not (or_null and value is None):
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            rule = f"{name} must be a whole number of at least {least}"
            require(is_whole and value >= least, rule + (", or null" if or_null else ""), value)


def require_method(instance: object, base: type, method: str) -> None:
    """Raise ValueError if the class of `instance` leaves out a method that `base` only declares."""
    own = type(instance)
    if getattr(own, method, None) in (None, getattr(base, method)):
        raise ValueError(
            f"the class {own.__name__} has no method {method}; write one, as the docs of its base "
            "class say"
        )


class ClassName:
    """The `name` of a class that sets none: the name of the class itself, in small letters."""

    def __get__(self, instance: object, owner: type) -> str:
        return owner.__name__.lower()


def set_choice(config: Any, name: str, choices: type[StrEnum]) -> None:
    """Convert the field of a frozen config to a member of `choices`; it may be a member's value.

    An unconverted string would fail every comparison by identity (`is`). Raises ValueError, which
    lists the choices, for any other value.
    """
    value = getattr(config, name)
    require(value in list(choices), f"{name} must be one of {', '.join(choices)}", value)
    object.__setattr__(config, name, choices(value))
