"""The annotations of a setting by its dotted name; texts reach their settings as they are typed.

Hydra reads a value before it knows the type of the setting: ``6e39871`` becomes infinite, and then
the text "inf". A setting that takes a text gets the text as it was typed, so its value is quoted.
"""

import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pipeline.configs.groups import Choices

_READ_AS_A_VALUE = re.compile(r"[+-]?[.\d][\w.+-]*|[+-]?(?:inf|nan)|true|false", re.IGNORECASE)
"""What Hydra may read as a number or a truth value."""


def annotations_at(schema: type, choices: Choices, key: str) -> set[Any]:
    """The possible annotations of a setting, without ``None``; empty if it does not exist."""
    kinds: set[Any] = {schema}
    for number, part in enumerate(parts := key.split(".")):
        kinds |= {*choices.get(".".join(parts[:number]), {}).values()}
        kinds = {inner for kind in kinds for inner in _inner(kind, part)}
    return kinds


def _inner(kind: Any, name: str) -> Iterator[Any]:
    found = None
    if get_origin(kind) is dict:
        found = get_args(kind)[1]
    elif is_dataclass(kind) and isinstance(kind, type):
        found = get_type_hints(kind).get(name)
    options = get_args(found) if get_origin(found) in (Union, UnionType) else (found,)
    return (option for option in options if option not in (None, NoneType))


def as_text(override: str, schema: type, choices: Choices) -> str:
    """``KEY=VALUE`` with quotes around each value that Hydra would change, if the setting takes a
    text."""
    key, equals, value = override.partition("=")
    values = value.split(",")
    if not equals or not all(map(_READ_AS_A_VALUE.fullmatch, values)):
        return override
    if annotations_at(schema, choices, key.lstrip("+")) != {str}:
        return override
    return f"{key}={','.join(map(repr, values))}"
