"""Why a step is not cached: what differs from the nearest artifact that the step made before."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.canonical import Json
from pipeline.manifest import Manifest

_LONGEST_VALUE = 40
_MOST_CHANGES = 4
_MOST_UNITS = 2
_MADE_BY = ("version", "code")
_MOST_COMPARED = 100


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


class History:
    """What a step made before, oldest first; of very many artifacts only the latest count."""

    def __init__(self, manifests: Sequence[Manifest]):
        latest_first = manifests[: -_MOST_COMPARED - 1 : -1]
        self._past = [(manifest, dict(leaves(manifest.recipe))) for manifest in latest_first]

    def nearest(
        self,
        recipe: Json,
        code: Mapping[str, str],
        input_names: Mapping[str, str],
        accepted: Sequence[Json] = (),
    ) -> Nearest | None:
        """The artifact with the fewest differences; of equally close ones the latest.

        Args:
            code: digests of the source behind ``recipe``.
            input_names: what to call the input with a given digest in the new recipe.
            accepted: what else may stand for the code in a recipe, without being a difference.
        """
        new = dict(leaves(recipe))

        def old(past: tuple[Manifest, Mapping[str, Any]]) -> Mapping[str, Any]:
            made, found = past
            if made.made_by not in accepted:
                return found
            present = {name: new[name] for name in _MADE_BY if name in new}
            return {**{n: v for n, v in found.items() if n not in _MADE_BY}, **present}

        closest = min(self._past, key=lambda past: _distance(new, old(past)), default=None)
        if closest is None:
            return None
        return _compare(new, code, closest[0], old(closest), input_names)


def explain(close: Nearest | None, expected: Container[str] = ()) -> str:
    """One line for a person. Inputs in ``expected`` are known to differ and not named again."""
    if close is None:
        return "never run"
    inputs = [f"{name} changed" for name in close.changed_inputs if name not in expected]
    found = [*close.changes, *_brief(close.changed_code), *inputs]
    if len(found) > _MOST_CHANGES:
        found[_MOST_CHANGES:] = [f"and {len(found) - _MOST_CHANGES} more"]
    return ", ".join(found)


def _brief(changed_code: Sequence[str]) -> list[str]:
    """The first few functions that changed, as one phrase; none if none did."""
    if not changed_code:
        return []
    more = len(changed_code) - _MOST_UNITS
    named = ", ".join(changed_code[:_MOST_UNITS])
    return [f"code: {named}, and {more} more" if more > 0 else f"code: {named}"]


def code_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """A phrase for each function, class or constant that differs between two closures."""
    changed = [f"{_unit(name)} changed" for name in new if name in old and old[name] != new[name]]
    added = [f"{_unit(name)} added" for name in new if name not in old]
    removed = [f"{_unit(name)} removed" for name in old if name not in new]
    return changed + added + removed


def _unit(name: str) -> str:
    module, _, unit = name.partition(":")
    return f"what importing {module} does" if unit == "(import)" else name


def _distance(new: Mapping[str, Any], old: Mapping[str, Any]) -> int:
    """In how many leaves two recipes differ. Put into words are only those of the nearest."""
    added_or_changed = sum(path not in old or old[path] != value for path, value in new.items())
    return added_or_changed + sum(path not in new for path in old)


def _compare(
    new: Mapping[str, Any],
    code: Mapping[str, str],
    manifest: Manifest,
    old: Mapping[str, Any],
    input_names: Mapping[str, str],
) -> Nearest:
    changes: list[str] = []
    inputs: list[str] = []
    changed_code: list[str] = []
    for path in dict.fromkeys((*old, *new)):
        if path in old and path in new and old[path] == new[path]:
            continue
        if path.endswith("$input"):
            name = input_names.get(str(new.get(path)), path.removesuffix(".$input"))
            inputs.append(name)
        elif path == "code":
            changed_code = _code_phrases(manifest, code, new)
        elif path != "version" or "version" in new:
            changes.append(_phrase(path, old, new))
    return Nearest(manifest, tuple(changes), tuple(changed_code), tuple(dict.fromkeys(inputs)))


def _code_phrases(manifest: Manifest, code: Mapping[str, str], new: Mapping[str, Any]) -> list[str]:
    if "code" not in new:
        return ["it declares a version now"]
    if "version" in manifest.made_by:
        version = manifest.made_by["version"]
        hint = f"; `temper accept {manifest.step}` if that makes no difference"
        return [f"made by version {version!r}, before its code was an input{hint}"]
    return code_changes(manifest.code, code) or ["code changed"]


def _phrase(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    name = path.removesuffix(".content")
    if name != path and path in old and path in new:
        return f"the content of {name} changed"
    if path not in old:
        return f"{path} added as {_short(new[path])}"
    if path not in new:
        return f"{path} removed"
    return f"{path} {_short(old[path])} → {_short(new[path])}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def leaves(data: Json, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of a recipe with its path as an author would write it: ``config.beta``."""
    if isinstance(data, dict) and "$enum" in data:
        yield path, str(data["$enum"]).rpartition(".")[2]
    elif isinstance(data, dict) and data:
        for name, item in data.items():
            if name == "$type":
                yield f"{path} type".lstrip(), str(item).rpartition(":")[2]
                continue
            hidden = name in ("arguments", "fields", "identity", "$tuple")
            yield from leaves(item, path if hidden else f"{path}.{name}".lstrip("."))
    elif isinstance(data, list) and data:
        for index, item in enumerate(data):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, data
