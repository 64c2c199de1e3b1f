"""Explains why a step is not cached: how it differs from the nearest artifact that it made."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.dag.canonical import Json
from pipeline.dag.settings import HIDDEN, differ, differing, leaves
from pipeline.store.manifest import Manifest
from pipeline.text import cut

_LONGEST_VALUE = 40
_MOST_CHANGES = 4
_DIGEST = re.compile("[0-9a-f]{32,}")
_MOST_UNITS = 2
_MOST_FIELDS = 3
_TYPE = " type"
"""The suffix of a path at which the leaves of a recipe hold the type of a value."""
_MADE_BY = ("version", "code")
_NO_SETTINGS = ("encoding", "step", "function")
_MOST_COMPARED = 100
_NEW_KEYS = "keys changed with Temper 0.2"


@dataclass(frozen=True)
class Nearest:
    """The earlier artifact with the fewest differences, and those differences.

    Attributes:
        changes: one phrase for each setting that differs, such as ``config.beta 0.1 → 0.05``.
        changed_code: one phrase for each function, class or constant that differs.
        changed_inputs: names of inputs whose content differs or is not known yet.
    """

    manifest: Manifest
    changes: tuple[str, ...]
    changed_code: tuple[str, ...]
    changed_inputs: tuple[str, ...]

    @property
    def distance(self) -> int:
        return len(self.changes) + bool(self.changed_code) + len(self.changed_inputs)

    @property
    def only_inputs(self) -> bool:
        return not self.changes and not self.changed_code


@dataclass(frozen=True)
class _Past:
    """An earlier artifact.

    Attributes:
        found: the leaves of its recipe, by path.
        is_older: its recipe has an older encoding, so its entries for code cannot be compared.
    """

    manifest: Manifest
    found: Mapping[str, Any]
    is_older: bool

    @property
    def experiment(self) -> str:
        return str(self.manifest.provenance.get("experiment") or "")


class History:
    """The earlier artifacts of a step, oldest first; only the latest ``_MOST_COMPARED`` count."""

    def __init__(self, manifests: Sequence[Manifest], encoding: int):
        latest_first = manifests[: -_MOST_COMPARED - 1 : -1]
        self._past = [_past(manifest, encoding) for manifest in latest_first]

    def nearest(
        self,
        recipe: Json,
        code: Mapping[str, str],
        input_names: Mapping[str, str],
        accepted: Sequence[Json] = (),
        experiment: str = "",
    ) -> Nearest | None:
        """The artifact with the fewest differences; of several, the latest.

        Args:
            code: digests of the source behind ``recipe``.
            input_names: the name of each input, by its digest in the new recipe.
            accepted: entries for code that were accepted as equivalent, so they are no difference.
            experiment: if this experiment made such artifacts, only these count.
        """
        new = dict(_settings(recipe))

        def distance(past: _Past) -> int:
            return len(differing(old(past), _without_code(new) if past.is_older else new))

        def old(past: _Past) -> Mapping[str, Any]:
            if past.is_older or past.manifest.made_by not in accepted:
                return past.found
            present = {name: new[name] for name in _MADE_BY if name in new}
            return {**_without_code(past.found), **present}

        own = [past for past in self._past if experiment and past.experiment == experiment]
        closest = min(own or self._past, key=distance, default=None)
        if closest is None:
            return None
        close = _compare(new, code, closest, old(closest), input_names)
        if close.distance == 0:
            return Nearest(closest.manifest, form_changes(closest.manifest.recipe, recipe), (), ())
        return close


def _past(manifest: Manifest, encoding: int) -> _Past:
    recipe: Any = manifest.recipe
    if not isinstance(recipe, dict) or recipe.get("encoding") == encoding:
        return _Past(manifest, dict(_settings(recipe)), is_older=False)
    found = dict(_settings({"arguments": recipe.get("arguments", {})}))
    without_modules = {
        path: value.rpartition(":")[2] if path.endswith(" type") else value
        for path, value in found.items()
    }
    return _Past(manifest, without_modules, is_older=True)


def _settings(recipe: Json) -> Iterator[tuple[str, Any]]:
    """The leaves of a recipe, without entries that are the same for every artifact of a step."""
    if isinstance(recipe, dict):
        recipe = {name: item for name, item in recipe.items() if name not in _NO_SETTINGS}
    return leaves(recipe)


def _without_code(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in _MADE_BY}


def explain(close: Nearest | None, expected: Collection[str] = (), more: Sequence[str] = ()) -> str:
    """The differences as one line. Inputs in ``expected`` are known to differ and are left out.

    Args:
        more: phrases for further differences: discovered dependencies.
    """
    if close is None:
        return "never run"
    inputs = [f"{name} changed" for name in close.changed_inputs if name not in expected]
    found = [*close.changes, *_brief(close.changed_code), *inputs, *more]
    if len(found) > _MOST_CHANGES:
        found[_MOST_CHANGES:] = [f"and {len(found) - _MOST_CHANGES} more"]
    if not found and not expected:
        return f"not the same as {close.manifest.name}"
    return ", ".join(found)


def _brief(changed_code: Sequence[str]) -> list[str]:
    """The first few functions that changed, as one phrase; empty if none changed."""
    if not changed_code:
        return []
    more = len(changed_code) - _MOST_UNITS
    named = ", ".join(changed_code[:_MOST_UNITS])
    return [f"code: {named}, and {more} more" if more > 0 else f"code: {named}"]


def code_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """A phrase for each function, class or constant that differs between two closures. One that
    only moved to another module counts as the same."""
    added = {_own_name(name): name for name in new if name not in old}
    removed = {_own_name(name): name for name in old if name not in new}
    moved = {added[name]: removed[name] for name in added.keys() & removed.keys()}
    before = {name: old.get(moved.get(name, name)) for name in new}
    changed = [f"{_unit(name)} changed" for name in new if before[name] not in (None, new[name])]
    appeared = [f"{_unit(name)} added" for name in new if before[name] is None]
    gone = [name for name in old if name not in new and name not in moved.values()]
    return changed + appeared + [f"{_unit(name)} removed" for name in gone]


def _own_name(unit: str) -> str:
    return unit.partition(":")[2]


def _unit(name: str) -> str:
    module, _, unit = name.partition(":")
    return f"what importing {module} does" if unit == "(import)" else name


def _compare(
    new: Mapping[str, Any],
    code: Mapping[str, str],
    past: _Past,
    old: Mapping[str, Any],
    input_names: Mapping[str, str],
) -> Nearest:
    manifest = past.manifest
    changes = [_NEW_KEYS] if past.is_older else []
    inputs: list[str] = []
    changed_code: list[str] = []
    replaced = _replaced(old, new)
    for path in differing(old, new):
        if (outer := _within(path, replaced)) is not None:
            changes += [replaced[outer]] if replaced[outer] not in changes else []
            continue
        if past.is_older and path in _MADE_BY:
            continue
        if path.endswith("$input"):
            name = input_names.get(str(new.get(path)), path.removesuffix(".$input"))
            inputs.append(name)
        elif path == "code":
            redundant = _ends_about_types(old, new)
            phrases = _code_phrases(manifest, code, new)
            changed_code = [p for p in phrases if not p.endswith(redundant)]
        elif path != "version" or "version" in new:
            changes.append(_phrase(path, old, new))
    return Nearest(manifest, tuple(changes), tuple(changed_code), tuple(dict.fromkeys(inputs)))


def _replaced(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Values that were replaced by a value of another type: one phrase for the whole value, such as
    ``config.lora null → LoraConfig(r=8)``."""
    phrases: dict[str, str] = {}
    for place in dict.fromkeys(p.removesuffix(_TYPE) for p in (*old, *new) if p.endswith(_TYPE)):
        one, other = _fields(old, place), _fields(new, place)
        is_new_type = old.get(f"{place}{_TYPE}") != new.get(f"{place}{_TYPE}")
        if one is None or other is None or not is_new_type or _within(place, phrases):
            continue
        has_inputs = any(name.endswith("$input") for name in (*one, *other))
        if one != other and not has_inputs:
            phrases[place] = f"{place} {_whole(old, place, other)} → {_whole(new, place, one)}"
    return phrases


def _ends_about_types(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """How phrases about the code of types end that only one of two recipes has. The phrases about
    these types make them redundant."""
    one, other = (
        {str(value) for path, value in found.items() if path.endswith(_TYPE)}
        for found in (old, new)
    )
    return (*(f":{name} added" for name in other - one), *(f":{n} removed" for n in one - other))


def _within(path: str, places: Collection[str]) -> str | None:
    """The place in ``places`` that a leaf is at or below; ``None`` if there is none."""
    return next((p for p in places if path in (p, f"{p}{_TYPE}") or path.startswith(f"{p}.")), None)


def _fields(leaves: Mapping[str, Any], place: str) -> dict[str, Any] | None:
    """The leaves inside a value, by the path within it; ``None`` if there is no such value."""
    if place not in leaves and f"{place}{_TYPE}" not in leaves:
        return None
    return {p.removeprefix(f"{place}."): v for p, v in leaves.items() if p.startswith(f"{place}.")}


def _whole(leaves: Mapping[str, Any], place: str, other: Mapping[str, Any]) -> str:
    """A value as Python code, with the first few fields that ``other`` does not have."""
    if place in leaves:
        value = leaves[place]
        return "null" if value is None else _short(value)
    own = (_fields(leaves, place) or {}).items()
    fields = [
        f"{name}={_short(value)}"
        for name, value in own
        if not name.endswith(_TYPE) and (name not in other or differ(other[name], value))
    ]
    fields[_MOST_FIELDS:] = ["…"] if len(fields) > _MOST_FIELDS else []
    return f"{leaves[f'{place}{_TYPE}']}({', '.join(fields)})"


def _code_phrases(manifest: Manifest, code: Mapping[str, str], new: Mapping[str, Any]) -> list[str]:
    if "code" not in new:
        return ["it declares a version now"]
    if "version" in manifest.made_by:
        version = manifest.made_by["version"]
        hint = f"; `temper accept {manifest.step}` if that makes no difference"
        return [f"made by version {version!r}, before its code was an input{hint}"]
    return code_changes(manifest.code, code) or ["it calls other code, or a class has other fields"]


def _phrase(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    name = path.removesuffix(".content")
    if name != path and path in old and path in new:
        return f"the content of {name} changed"
    if path not in old:
        return f"{path} added as {_short(new[path])}"
    if path not in new:
        return f"{path} removed"
    return f"{path} {_short(old[path])} → {_short(new[path])}"


def form_changes(old: Json, new: Json) -> tuple[str, ...]:
    """The first difference in form between recipes with equal values: a list for a tuple, and so
    on."""
    path = _first_difference(old, new, "")
    return () if path is None else (f"{path or 'an argument'} is of another type",)


def _first_difference(old: Json, new: Json, path: str) -> str | None:
    pairs: list[tuple[str, Json, Json]] = []
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        pairs = [(_below(path, name), old[name], new[name]) for name in old]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        both = enumerate(zip(old, new, strict=True))
        pairs = [(f"{path}[{index}]", one, other) for index, (one, other) in both]
    elif differ(old, new):
        return path
    found = (_first_difference(one, other, below) for below, one, other in pairs)
    return next((path for path in found if path is not None), None)


def _below(path: str, name: str) -> str:
    """The path of an item of a mapping, in Python's notation."""
    return path if name in HIDDEN or name.startswith("$") else f"{path}.{name}".lstrip(".")


def _short(value: Any) -> str:
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        value = f"{value[:8]}…"
    return cut(repr(value), _LONGEST_VALUE)
