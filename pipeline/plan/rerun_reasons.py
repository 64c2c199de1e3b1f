"""Explains why a step is not cached: how it differs from the nearest artifact that it made."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pipeline.base.text import cut
from pipeline.dag.canonical import Json, same
from pipeline.dag.settings import HIDDEN, differing, leaves
from pipeline.store.manifest import Manifest

_LONGEST_VALUE = 40
_MOST_CHANGES = 4
_DIGEST = re.compile("[0-9a-f]{32,}")
_MOST_UNITS = 2
_MOST_FIELDS = 3
_TYPE = " type"
"""The suffix of a path at which the leaves of a recipe hold the type of a value."""
ABSENT: Any = object()
"""Stands for an item that only the other of two values has."""
_ATOMS = {"$input", "$enum", "$float", "$path", "$bytes"}
_NO_SETTINGS = ("encoding", "step", "function")
_MOST_COMPARED = 100
_NEW_KEYS = "Temper makes other keys now"


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

    @property
    def only_inputs(self) -> bool:
        return not self.changes


@dataclass(frozen=True)
class _Past:
    """An earlier artifact.

    Attributes:
        arguments: the encoded arguments in its recipe.
        found: the leaves of its recipe, by path.
    """

    manifest: Manifest
    arguments: Json
    found: Mapping[str, Any]

    @property
    def experiment(self) -> str:
        return str(self.manifest.provenance.get("experiment") or "")

    @property
    def encoding(self) -> Any:
        return self.manifest.recipe.get("encoding")  # type: ignore[union-attr]


class History:
    """The earlier artifacts of a step, oldest first; only the latest ``_MOST_COMPARED`` count."""

    def __init__(self, manifests: Sequence[Manifest]):
        self._past = [_past(manifest) for manifest in manifests[: -_MOST_COMPARED - 1 : -1]]

    def nearest(
        self,
        recipe: Json,
        input_names: Mapping[str, str],
        experiment: str = "",
    ) -> Nearest | None:
        """The artifact with the fewest differences, of any experiment; of several, the latest.

        Args:
            input_names: the name of each input, by its digest in the new recipe.
            experiment: of artifacts with equally few differences, those of this experiment count.
        """
        new = dict(_settings(recipe))

        def distance(past: _Past) -> tuple[int, bool]:
            return len(differing(past.found, new)), past.experiment != experiment

        closest = min(self._past, key=distance, default=None)
        if closest is None:
            return None
        return _compare(recipe, closest, input_names)

    def of_call(
        self, recipe: Json, inputs: Sequence[tuple[str | None, Collection[str]]]
    ) -> frozenset[str]:
        """The keys of the artifacts of a call, with whatever version and content.

        Args:
            recipe: the recipe of the call, with any digests.
            inputs: of each input its part, and the keys that its artifact may have.
        """
        new = _call(_settings(recipe))
        return frozenset(
            past.manifest.key
            for past in self._past
            if not differing(_call(past.found.items()), new)
            and len(past.manifest.inputs) == len(inputs)
            and all(
                one.part == part and one.key in keys
                for one, (part, keys) in zip(past.manifest.inputs, inputs, strict=True)
            )
        )


def _call(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The leaves of a recipe with neither version nor the content of inputs and files."""
    return {
        path: "" if path.endswith(".$input") else value
        for path, value in found
        if path != "version" and ".content" not in path
    }


def _past(manifest: Manifest) -> _Past:
    recipe: Any = manifest.recipe
    return _Past(manifest, recipe.get("arguments", {}), dict(_settings(recipe)))


def _settings(recipe: Json) -> Iterator[tuple[str, Any]]:
    """The leaves of a recipe, without entries that are the same for every artifact of a step."""
    if isinstance(recipe, dict):
        recipe = {name: item for name, item in recipe.items() if name not in _NO_SETTINGS}
    return ((path, value) for path, value in leaves(recipe) if path)


def explain(close: Nearest | None, expected: Collection[str] = (), more: Sequence[str] = ()) -> str:
    """The differences as one line. Inputs in ``expected`` are known to differ and are left out.

    Args:
        more: phrases for further differences: discovered dependencies.
    """
    if close is None:
        return "never run"
    inputs = [f"{name} changed" for name in close.changed_inputs if name not in expected]
    found = [*close.changes, *inputs, *_brief(more)]
    if len(found) > _MOST_CHANGES:
        found[_MOST_CHANGES:] = [f"and {len(found) - _MOST_CHANGES} more"]
    if not found and not expected:
        return f"not the same as {close.manifest.name}"
    return ", ".join(found)


def _brief(changed: Sequence[str]) -> list[str]:
    """The first few of some changes, and how many more there are."""
    more = len(changed) - _MOST_UNITS
    return [*changed[:_MOST_UNITS], *([f"and {more} more"] if more > 0 else [])]


def _compare(
    recipe: Any,
    past: _Past,
    input_names: Mapping[str, str],
) -> Nearest:
    new = dict(_settings(recipe))
    changes = [] if past.encoding == recipe.get("encoding") else [_NEW_KEYS]
    inputs: list[str] = []
    for path, one, other in differences(past.arguments, recipe.get("arguments", {})):
        match one, other:
            case {"$input": _}, {"$input": digest}:
                inputs.append(input_names.get(digest, path))
            case _:
                changes.append(_phrase(path, one, other, input_names))
    if past.found.get("version") != new.get("version"):
        was, now = (found.get("version", ABSENT) for found in (past.found, new))
        changes.append(_phrase("version", was, now, {}))
    unique = (tuple(dict.fromkeys(phrases)) for phrases in (changes, inputs))
    return Nearest(past.manifest, *unique)


def differences(old: Json, new: Json, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places at which two encoded values differ, with both values there.

    Values of one form are compared item by item; an item that only one of them has is ``ABSENT`` in
    the other. Values of different forms are one difference: a list and a tuple, two classes.
    """
    if isinstance(old, list) and isinstance(new, list):
        for index, (one, other) in enumerate(zip_longest(old, new, fillvalue=ABSENT)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(old, dict) and isinstance(new, dict) and _are_of_one_form(old, new):
        for name in dict.fromkeys((*old, *new)):
            is_mark = name.startswith("$") or (name in HIDDEN and "$type" in old)
            below = path if is_mark else f"{path}.{name}".lstrip(".")
            yield from differences(old.get(name, ABSENT), new.get(name, ABSENT), below)
    elif ABSENT in (old, new) or not same(old, new):
        yield path, old, new


def _are_of_one_form(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    tags = {name for name in (*old, *new) if name.startswith("$")}
    if any(name not in old or name not in new for name in tags) or tags & _ATOMS:
        return False
    return old.get("$type") == new.get("$type")


def _phrase(path: str, old: Any, new: Any, input_names: Mapping[str, str]) -> str:
    name, content, _ = f"{path}.".partition(".content.")
    if content:
        return f"the content of {name} changed"
    if new is ABSENT or (new is None and _has_input(old)):
        return f"{path} removed"
    if _has_input(new) and (old is ABSENT or old is None):
        return f"{path} added"
    if old is ABSENT:
        return f"{path} added as {shown(new, None, input_names)}"
    one, other = shown(old, new, input_names), shown(new, old, input_names)
    return f"{path} is of another type" if one == other else f"{path} {one} → {other}"


def _has_input(value: Any) -> bool:
    return value is not ABSENT and any(path.endswith("$input") for path, _ in leaves(value))


def shown(value: Any, other: Any = None, input_names: Mapping[str, str] = {}) -> str:
    """An encoded value as Python code; of an object, the first few fields that ``other`` lacks."""
    match value:
        case None:
            return "null"
        case {"$input": digest}:
            return input_names.get(str(digest), "another input")
        case {"$type": name, "fields": dict() as own}:
            theirs = other.get("fields") if isinstance(other, dict) else None
            theirs = theirs if isinstance(theirs, dict) else {}
            fields = [
                f"{field}={shown(item, None, input_names)}"
                for field, item in own.items()
                if field not in theirs or _plain(theirs[field]) != _plain(item)
            ]
            fields[_MOST_FIELDS:] = ["…"] if len(fields) > _MOST_FIELDS else []
            return f"{name}({', '.join(fields)})"
        case {"$type": name}:
            return f"{name}(…)"
        case _:
            plain = _plain(value)
            is_digest = isinstance(plain, str) and _DIGEST.fullmatch(plain)
            return cut(repr(f"{plain[:8]}…" if is_digest else plain), _LONGEST_VALUE)


def _plain(value: Any) -> Any:
    """An encoded value without the marks of its encoding."""
    match value:
        case {"$tuple": list() as items}:
            return tuple(map(_plain, items))
        case {"$enum": str(name)}:
            return name.rpartition(".")[2]
        case dict():
            marked = [item for name, item in value.items() if name.startswith("$")]
            return _plain(marked[0]) if marked else {n: _plain(item) for n, item in value.items()}
        case list():
            return [*map(_plain, value)]
        case _:
            return value
