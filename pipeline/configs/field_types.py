"""The annotations of a setting by its dotted name; texts reach their settings as they are typed.

Hydra reads a value before it knows the type of the setting: ``6e39871`` becomes infinite, and then
the text "inf". A setting that takes a text gets the text as it was typed, so its value is quoted.
A part that may be left out (``sft: TrainConfig | None``) is left out by ``sft=none`` and ``~sft``.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pipeline.base.errors import TemperError
from pipeline.configs.groups import Choices

_READ_AS_A_VALUE = re.compile(r"[+-]?[.\d][\w.+-]*|[+-]?(?:inf|nan)|true|false", re.IGNORECASE)
"""What Hydra may read as a number or a truth value."""


def annotations_at(schema: type, choices: Choices, key: str) -> set[Any]:
    """The possible annotations of a setting; empty if it does not exist."""
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
    return (option for option in options if option is not None)


def as_text(override: str, schema: type, choices: Choices) -> str:
    """``KEY=VALUE`` with quotes around each value that Hydra would change, if the setting takes a
    text; ``KEY=null`` if it leaves a part out."""
    key, equals, value = override.partition("=")
    if value.lower() in ("none", "null") or (override.startswith("~") and not equals):
        name = key.lstrip("+~").replace("/", ".")
        if not _is_optional_part(schema, choices, name):
            return override
        # what is or holds a choice is a group to Hydra, which `store_schema` gives an option none
        if any(path.startswith(f"{name}.") for path in choices):
            return f"+{name.replace('.', '/')}=none"
        return f"{name.replace('.', '/')}=none" if name in choices else f"{name}=null"
    values = value.split(",")
    if not equals or not all(map(_READ_AS_A_VALUE.fullmatch, values)):
        return override
    if annotations_at(schema, choices, key.lstrip("+")) - {NoneType} != {str}:
        return override
    return f"{key}={','.join(map(repr, values))}"


def of_parts_in_use(overrides: Sequence[str]) -> list[str]:
    """The overrides without those of settings of a part that a later one leaves out.

    Raises:
        TemperError: a part is left out, and a setting of it is given after that.
    """
    left: list[str] = []
    parts: list[str] = []
    for override in overrides:
        key = override.lstrip("+").partition("=")[0].replace("/", ".")
        if above := next((part for part in parts if key.startswith(f"{part}.")), None):
            raise TemperError(f"{above}=none leaves {above} out, and {override} sets it; give one")
        if override.startswith("+") and override.endswith("=none"):
            parts.append(key)
            left = [o for o in left if not o.replace("/", ".").startswith(f"{key}.")]
        left.append(override)
    return left


def _is_optional_part(schema: type, choices: Choices, name: str) -> bool:
    kinds = annotations_at(schema, choices, name)
    return NoneType in kinds and all(map(is_dataclass, kinds - {NoneType}))
