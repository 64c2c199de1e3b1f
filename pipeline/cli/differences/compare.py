"""Compares two artifacts: settings, inputs, code, files, metrics."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from pipeline.dag.canonical import Json
from pipeline.dag.settings import differing
from pipeline.plan.rerun_reasons import differences, shown
from pipeline.plan.variants import settings_and_inputs, settings_of
from pipeline.show.metrics import metric_text
from pipeline.store.manifest import InputEntry, Manifest
from pipeline.store.names.naming import SHOWN_DIGITS

RECIPE_FIELDS = ("step", "version")
"""The readable entries of a recipe about code; digests of source are compared by function."""


@dataclass(frozen=True)
class Difference:
    """Something with a name and its text on both sides; ``None`` if a side does not have it."""

    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.name}: {self.old or 'none'} → {self.new or 'none'}"


@dataclass(frozen=True)
class Comparison:
    """Two artifacts side by side: all metrics, and the differences in everything else."""

    settings: Sequence[Difference]
    inputs: Sequence[Difference]
    code: Sequence[Difference]
    files: Sequence[Difference]
    same_files: int
    metrics: Sequence[Difference]


def compare(old: Manifest, new: Manifest) -> Comparison:
    old_files, new_files = dict(_files(old)), dict(_files(new))
    old_settings, new_settings = settings(old), settings(new)
    old_inputs, new_inputs = inputs(old), inputs(new)
    by_input = {*old_inputs, *new_inputs}
    paths = {*old_settings, *new_settings, *by_input}
    changed = _differences(old_settings, new_settings)
    if not changed and old_inputs == new_inputs:
        found = differences(_arguments(old), _arguments(new))
        changed = [Difference(at, shown(one), shown(other)) for at, one, other in found]
    # functions of two steps cannot be compared by name
    functions = (
        _differences(old.discovered.code, new.discovered.code) if old.step == new.step else []
    )
    return Comparison(
        settings=[d for d in changed if not _has_parts(d, by_input, paths)],
        inputs=_differences(old_inputs, new_inputs),
        code=_differences(_made_by(old), _made_by(new)) + functions,
        files=_differences(old_files, new_files),
        same_files=sum(old_files[name] == new_files.get(name) for name in old_files),
        metrics=[
            Difference(name, _text(old.metrics, name), _text(new.metrics, name))
            for name in dict.fromkeys((*old.metrics, *new.metrics))
        ],
    )


def settings(manifest: Manifest) -> dict[str, str]:
    """Every setting in an artifact's recipe by its path, as Python source."""
    return {path: repr(value) for path, value in settings_of(manifest.recipe).items()}


def _arguments(manifest: Manifest) -> Json:
    recipe: Any = manifest.recipe
    return recipe.get("arguments", {})


def inputs(manifest: Manifest) -> dict[str, str]:
    """The artifact behind each input of an artifact, by parameter."""
    entries = {entry.digest: entry for entry in manifest.inputs}
    _, given = settings_and_inputs(manifest.recipe)
    return {path: _input(entries.get(digest), digest) for path, digest in given.items()}


def _has_parts(difference: Difference, inputs: Set[str], paths: Set[str]) -> bool:
    """Whether the value is empty or missing on both sides, and its parts are listed one by one."""
    parts = (f"{difference.name}.", f"{difference.name}[", f"{difference.name} type")
    is_nothing = {difference.old, difference.new} <= {None, "None", "[]", "{}"}
    return is_nothing and (
        difference.name in inputs or any(path.startswith(parts) for path in paths)
    )


def _input(entry: InputEntry | None, digest: str) -> str:
    if entry is None:
        return f"content {digest[:SHOWN_DIGITS]}"
    part = "" if entry.part is None else f"[{entry.part!r}]"
    name = f"{entry.step}@{entry.key[:SHOWN_DIGITS]}{part}"
    return f"{name} (content {digest[:SHOWN_DIGITS]})"


def _made_by(manifest: Manifest) -> dict[str, str]:
    recipe: Any = manifest.recipe
    return {name: repr(recipe[name]) for name in RECIPE_FIELDS if name in recipe}


def _files(manifest: Manifest) -> dict[str, str]:
    return {
        name: f"{entry.size} bytes, BLAKE3 {entry.blake3[:SHOWN_DIGITS]}"
        for name, entry in manifest.files.items()
    }


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[Difference]:
    return [Difference(name, old.get(name), new.get(name)) for name in differing(old, new)]


def _text(metrics: Mapping[str, Any], name: str) -> str | None:
    return metric_text(metrics[name]) if name in metrics else None
