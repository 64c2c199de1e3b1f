"""Why a step is not cached: what differs from the nearest artifact that the step made before."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.canonical import Json
from pipeline.manifest import Manifest

_LONGEST_VALUE = 40
_MOST_CHANGES = 4
_MOST_COMPARED = 200


@dataclass(frozen=True)
class Nearest:
    """The earlier artifact with the fewest differences, and those differences.

    Attributes:
        changes: one phrase for each setting that differs, such as ``config.beta 0.1 → 0.05``.
        changed_inputs: names of inputs whose content differs or is not known yet.
    """

    manifest: Manifest
    changes: tuple[str, ...]
    changed_inputs: tuple[str, ...]

    @property
    def distance(self) -> int:
        return len(self.changes) + len(self.changed_inputs)


def nearest(
    recipe: Json, earlier: Sequence[Manifest], input_names: Mapping[str, str]
) -> Nearest | None:
    """The closest of the earlier artifacts of a step; of equally close ones the latest.

    Args:
        earlier: oldest first; of very many only the latest are looked at.
        input_names: what to call the input with a given digest in the new recipe.
    """
    latest_first = earlier[: -_MOST_COMPARED - 1 : -1]
    candidates = [_compare(recipe, manifest, input_names) for manifest in latest_first]
    return min(candidates, key=lambda c: c.distance, default=None)


def explain(close: Nearest | None, expected: Container[str] = ()) -> str:
    """One line for a person. Inputs in ``expected`` are known to differ and not named again."""
    if close is None:
        return "never run"
    inputs = [f"{name} changed" for name in close.changed_inputs if name not in expected]
    found = [*close.changes, *inputs]
    if len(found) > _MOST_CHANGES:
        found[_MOST_CHANGES:] = [f"and {len(found) - _MOST_CHANGES} more"]
    return ", ".join(found)


def _compare(recipe: Json, manifest: Manifest, input_names: Mapping[str, str]) -> Nearest:
    old, new = dict(_leaves(manifest.recipe)), dict(_leaves(recipe))
    changes, inputs = [], []
    for path in dict.fromkeys((*old, *new)):
        if path in old and path in new and old[path] == new[path]:
            continue
        if path.endswith("$input"):
            name = input_names.get(str(new.get(path)), path.removesuffix(".$input"))
            inputs.append(name)
        else:
            changes.append(_phrase(path, old, new))
    return Nearest(manifest, tuple(changes), tuple(dict.fromkeys(inputs)))


def _phrase(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if path.endswith(".content"):
        return f"the content of {path.removesuffix('.content')} changed"
    if path not in old:
        return f"{path} added as {_short(new[path])}"
    if path not in new:
        return f"{path} removed"
    return f"{path} {_short(old[path])} → {_short(new[path])}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _leaves(data: Json, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of a recipe with its path as an author would write it: ``config.beta``."""
    if isinstance(data, dict) and "$enum" in data:
        yield path, str(data["$enum"]).rpartition(".")[2]
    elif isinstance(data, dict) and data:
        for name, item in data.items():
            if name == "$type":
                yield f"{path} type".lstrip(), str(item).rpartition(":")[2]
                continue
            hidden = name in ("arguments", "fields", "identity", "$tuple")
            yield from _leaves(item, path if hidden else f"{path}.{name}".lstrip("."))
    elif isinstance(data, list) and data:
        for index, item in enumerate(data):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, data
