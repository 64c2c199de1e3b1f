"""The settings in a recipe, in the author's notation: ``config.beta``."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.dag.canonical import Json

HIDDEN = ("arguments", "fields", "identity", "$tuple")
"""Names in the encoding that are not part of the author's notation."""


def leaves(data: Json, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of a recipe, with its path in the author's notation: ``config.beta``."""
    if isinstance(data, dict) and "$enum" in data:
        yield path, str(data["$enum"]).rpartition(".")[2]
    elif isinstance(data, dict) and "$float" in data:
        yield path, str(data["$float"])
    elif isinstance(data, dict) and "$path" in data:
        yield path, str(data["$path"])
    elif isinstance(data, dict) and data:
        for name, item in data.items():
            if name == "$type":
                yield f"{path} type".lstrip(), str(item)
                continue
            hidden = name in HIDDEN
            yield from leaves(item, path if hidden else f"{path}.{name}".lstrip("."))
    elif isinstance(data, list) and data:
        for index, item in enumerate(data):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, data


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The names that only one of two mappings has, or that have different values in them."""
    return [
        name
        for name in dict.fromkeys((*old, *new))
        if name not in old or name not in new or differ(old[name], new[name])
    ]


def differ(one: Any, other: Any) -> bool:
    """Whether two values are different. ``1``, ``1.0`` and ``True`` are three values."""
    return type(one) is not type(other) or one != other
