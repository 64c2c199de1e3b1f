"""What differs between two artifacts: settings, inputs, code, files, metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.board import metric_text
from pipeline.cli.naming import SHOWN_DIGITS
from pipeline.manifest import InputEntry, Manifest
from pipeline.why import leaves

_HIDDEN = ("encoding", "code", "version")


@dataclass(frozen=True)
class Difference:
    """One thing by name, in words, on both sides; ``None`` where it is not there."""

    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.name}: {self.old or 'none'} → {self.new or 'none'}"


@dataclass(frozen=True)
class Comparison:
    """Two artifacts side by side. Of everything but metrics, only what differs."""

    settings: Sequence[Difference]
    inputs: Sequence[Difference]
    code: Sequence[Difference]
    files: Sequence[Difference]
    same_files: int
    metrics: Sequence[Difference]


def compare(old: Manifest, new: Manifest) -> Comparison:
    """What differs between two artifacts, of one step or of two."""
    old_files, new_files = dict(_files(old)), dict(_files(new))
    return Comparison(
        settings=_differences(settings(old), settings(new)),
        inputs=_differences(inputs(old), inputs(new)),
        code=_differences(_made_by(old), _made_by(new)) + _differences(old.code, new.code),
        files=_differences(old_files, new_files),
        same_files=sum(old_files[name] == new_files.get(name) for name in old_files),
        metrics=[
            Difference(name, _text(old.metrics, name), _text(new.metrics, name))
            for name in dict.fromkeys((*old.metrics, *new.metrics))
        ],
    )


def settings(manifest: Manifest) -> dict[str, str]:
    """Every setting in an artifact's recipe, as its author would write it."""
    return {
        path: repr(value)
        for path, value in leaves(manifest.recipe)
        if path not in _HIDDEN and not path.endswith("$input")
    }


def inputs(manifest: Manifest) -> dict[str, str]:
    """Which artifact each input of an artifact was, by parameter."""
    entries = {entry.digest: entry for entry in manifest.inputs}
    return {
        path.removesuffix(".$input"): _input(entries.get(str(digest)), str(digest))
        for path, digest in leaves(manifest.recipe)
        if path.endswith("$input")
    }


def _input(entry: InputEntry | None, digest: str) -> str:
    if entry is None:
        return f"content {digest[:SHOWN_DIGITS]}"
    part = "" if entry.part is None else f"[{entry.part!r}]"
    name = f"{entry.step}@{entry.key[:SHOWN_DIGITS]}{part}"
    return f"{name} (content {digest[:SHOWN_DIGITS]})"


def _made_by(manifest: Manifest) -> dict[str, str]:
    """The declared version. Digests of the source are said function by function."""
    version = manifest.made_by.get("version")
    return {} if version is None else {"version": repr(version)}


def _files(manifest: Manifest) -> dict[str, str]:
    return {
        name: f"{entry.size} bytes, BLAKE3 {entry.blake3[:SHOWN_DIGITS]}"
        for name, entry in manifest.files.items()
    }


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[Difference]:
    return [
        Difference(name, old.get(name), new.get(name))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def _text(metrics: Mapping[str, Any], name: str) -> str | None:
    return metric_text(metrics[name]) if name in metrics else None
