"""The manifest: the small JSON object whose creation is the commit of an artifact.

A key is usually made once. It is made again if its data was evicted or damaged, or if a user forced
it. Each time is a *generation* with a manifest of its own; none replaces another, and the latest
one is the artifact of the key.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.base.redaction import exact_record, record
from pipeline.dag.canonical import Json, hash_json
from pipeline.dag.files import FileEntry
from pipeline.store.untrusted_input import (
    LARGEST,
    is_attempt,
    is_blake3,
    is_count,
    is_file,
    is_key,
    is_seconds,
    is_step,
    parse_json,
)

MOST_GENERATIONS = 999_999_999
CHECKSUM = "checksum"
_PLAIN_ASCII = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True)
class InputEntry:
    """The artifact behind an input, and the digest (of it or of a part) that is in the key."""

    step: str
    key: str
    part: str | None
    digest: str


@dataclass(frozen=True)
class Discovered:
    """The trace of a step: its dependencies that are not in its key, as digests by name.

    An artifact is valid only while these are unchanged; see :mod:`pipeline.observed.discovery`.

    Attributes:
        code: digests of the code that counts, as ``module:unit``; see
            :mod:`pipeline.trace.counted`.
        files: digests of files that it read, by path, relative for files of the project; ``absent``
            for a file that it looked for and did not find.
        folders: digests of the lists of names in folders that it listed.
        looks: how the code looks apart from names, places and texts, by unit. It decides nothing;
            see :mod:`pipeline.trace.looks`.
        entry: ``module:name`` of the step function, and of each class of its arguments and
            inputs.
    """

    code: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    looks: Mapping[str, str] = field(default_factory=dict, compare=False)
    entry: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.code or self.files or self.folders)

    @cached_property
    def state(self) -> str:
        """The digest of the whole trace."""
        return hash_json([{**self.code}, {**self.files}, {**self.folders}, [*self.entry]])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Discovered":
        """Raise `TypeError` if the data has another form."""
        found = cls(**{**data, "entry": tuple(data.get("entry", ()))})
        if not all(isinstance(name, str) for name in found.entry):
            raise TypeError("the entry of what was discovered is no list of names")
        for named in (found.code, found.files, found.folders, found.looks):
            if not isinstance(named, dict) or not all(isinstance(v, str) for v in named.values()):
                raise TypeError("what was discovered is no mapping of names to digests")
            if any("\0" in name for name in named):
                raise TypeError("what was discovered has a name that no file has")
        return found


@dataclass(frozen=True)
class Manifest:
    """The record of an artifact: its content (``files``, ``digest``), its origin (``recipe``,
    ``inputs``) and how it was made (``metrics``, ``seconds``, ``provenance``). The digest covers
    only ``files``.

    Attributes:
        discovered: its dependencies that are not in the key.
        kind: ``module:name`` of the kind of artifact.
        function: ``module:name`` of the step function; its location is no part of the recipe.
        generation: how often the key had been made before.
    """

    step: str
    key: str
    attempt: str
    digest: str
    recipe: Json
    inputs: tuple[InputEntry, ...]
    files: Mapping[str, FileEntry]
    metrics: Mapping[str, Any]
    seconds: float
    provenance: Mapping[str, Any] = field(default_factory=dict)
    discovered: Discovered = field(default_factory=Discovered)
    kind: str | None = None
    generation: int = 0
    function: str = ""

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(entry.size for entry in self.files.values())

    @property
    def name(self) -> str:
        """The display name ``STEP@KEY``, with a shortened key."""
        return f"{self.step}@{self.key[:8]}"

    @property
    def made_by(self) -> dict[str, Json]:
        """The version that its step declared; empty if it declared none."""
        recipe: Any = self.recipe
        return {name: recipe[name] for name in ("version",) if name in recipe}

    def digest_of(self, part: str | None) -> str:
        """The digest of the artifact, or of its files under the folder ``part``.

        A part's digest covers names relative to the part, so equal parts have equal digests
        wherever they lie. It differs from the digest of a whole artifact, whose files have other
        paths.
        """
        if part is None:
            return self.digest
        return hash_json({"part": files_digest(self.files_of(part))})

    def files_of(self, part: str | None) -> Mapping[str, FileEntry]:
        """The files of the artifact, or of one part with their names within it.

        Raises:
            TemperError: there is no such part.
        """
        if part is None:
            return self.files
        prefix = f"{part}/"
        inside = {
            name.removeprefix(prefix): entry
            for name, entry in self.files.items()
            if name.startswith(prefix)
        }
        if not inside:
            parts = sorted({name.split("/")[0] for name in self.files if "/" in name})
            known = ", ".join(parts) or "none, as a part is a folder"
            raise TemperError(f"the output of {self.step} has no part {part!r}; it has: {known}")
        return inside

    def to_json(self) -> bytes:
        """With a checksum of all fields, since the key and the digest cover only some of them."""
        exact = {f.name for f in fields(self)} - {"metrics", "provenance"}
        data = json.loads(record(asdict(self), exact))
        return exact_record({**data, CHECKSUM: hash_json(data)}, indent=1)

    @classmethod
    def from_json(
        cls, data: bytes, url: str, place: tuple[str, str, int] | None = None
    ) -> "Manifest":
        """Raise `TemperError`, which says what to do, if the data is no manifest of this place."""
        try:
            found = parse_json(data)
            if not isinstance(found, dict):
                raise ValueError("it holds no object of JSON")
            checksum = found.pop(CHECKSUM, None)  # manifests of older versions have none
            if checksum is not None and checksum != hash_json(found):
                raise ValueError("its checksum is not that of its content")
            return cls.from_dict(found, place)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TemperError(
                f"{url} is damaged ({_reason(error)}); delete it, and the step will be run again"
            ) from error

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], place: tuple[str, str, int] | None = None
    ) -> "Manifest":
        """Raise `ValueError`, `TypeError`, `KeyError`, `AttributeError` or `RecursionError` for
        what is no manifest, has an invalid name, or another digest, key or place than it says."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        known["inputs"] = tuple(_input_entry(entry) for entry in data["inputs"])
        known["files"] = file_entries(data["files"])
        if "discovered" in known:
            known["discovered"] = Discovered.from_dict(known["discovered"])
        made = cls(**known)
        made._require_forms()
        if hash_json(made.recipe) != made.key:
            raise ValueError("its key is not that of its recipe")
        if files_digest(made.files) != made.digest:
            raise ValueError("its digest is not that of its files")
        if place not in (None, (made.step, made.key, made.generation)):
            raise ValueError(f"it is the manifest of {made.name}, generation {made.generation}")
        return made

    def _require_forms(self) -> None:
        """Raise `ValueError` if a name is invalid, or a value has another type or size."""
        problems = (
            ("step", not is_step(self.step)),
            ("attempt", not is_attempt(self.attempt)),
            ("generation", not is_count(self.generation, MOST_GENERATIONS)),
            ("seconds", not is_seconds(self.seconds)),
            ("kind", not isinstance(self.kind, str | None)),
            ("function", not isinstance(self.function, str)),
            ("recipe", not _is_recipe(self.recipe)),
            ("metrics", not _are_metrics(self.metrics)),
            ("provenance", not _is_provenance(self.provenance)),
        )
        for name, is_wrong in problems:
            if is_wrong:
                raise ValueError(f"its {name} is {getattr(self, name)!r:.80}")


def files_digest(files: Mapping[str, FileEntry]) -> str:
    """The digest of a set of content files: the identity of an artifact, however it was made."""
    return hash_json({name: [entry.size, entry.blake3] for name, entry in files.items()})


def file_entries(data: Any, is_name: Callable[[object], bool] = is_file) -> dict[str, FileEntry]:
    """Parse the description of files in JSON. Raise `ValueError`, `TypeError` or `AttributeError`
    for an invalid name, size or digest."""
    found = {}
    for name, entry in data.items():
        described = FileEntry(**entry)
        if not (is_name(name) and is_count(described.size) and is_blake3(described.blake3)):
            raise ValueError(f"it names the file {name!r:.80} with {entry!r:.120}")
        found[name] = described
    if sum(entry.size for entry in found.values()) > LARGEST:
        raise ValueError("its files are larger than can be")
    return found


def _input_entry(data: Any) -> InputEntry:
    entry = InputEntry(**data)
    names_one = is_step(entry.step) and is_key(entry.key) and is_key(entry.digest)
    if not (names_one and (entry.part is None or is_file(entry.part))):
        raise ValueError(f"it names the input {data!r:.120}")
    return entry


def _is_recipe(recipe: Any) -> bool:
    return (
        isinstance(recipe, dict)
        and isinstance(recipe.get("function", ""), str)
        and isinstance(recipe.get("arguments", {}), dict)
    )


def _are_metrics(metrics: Any) -> bool:
    notices = metrics.get("notices", []) if isinstance(metrics, dict) else None
    return isinstance(notices, list) and all(isinstance(notice, str) for notice in notices)


def _is_provenance(provenance: Any) -> bool:
    return isinstance(provenance, dict) and all(
        isinstance(provenance.get(name), str | None) for name in ("run", "host", "launcher")
    )


def _reason(error: Exception) -> str:
    """The error as one line, without text from the store."""
    text = " ".join(str(error).split())
    return text if _PLAIN_ASCII.fullmatch(text) else ascii(text)[1:-1]
