"""The manifest: the one small JSON object whose creation is the commit of an artifact.

A key is usually made once. It is made again when its data was evicted or damaged, or when somebody
forced it; each time is a *generation* with a manifest of its own, and the latest is what the key
stands for. None replaces another.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pipeline.canonical import Json, hash_json
from pipeline.errors import TemperError


@dataclass(frozen=True)
class FileEntry:
    """One content file: its size in bytes and the BLAKE3 of its bytes, in hexadecimal."""

    size: int
    blake3: str


@dataclass(frozen=True)
class InputEntry:
    """Which artifact an input was, and the digest (of it or of one part) that the key is over."""

    step: str
    key: str
    part: str | None
    digest: str


@dataclass(frozen=True)
class Manifest:
    """What an artifact is (``files``, ``digest``), what made it (``recipe``, ``inputs``), and how
    it went (``metrics``, ``seconds``, ``provenance``). Only ``files`` bears on the digest.

    Attributes:
        code: digests of the source that made it, by name; see :mod:`pipeline.code`. It says which
            function changed; what bears on the key is in the recipe.
        kind: ``module:name`` of the kind of artifact.
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
    code: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None
    generation: int = 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    @property
    def name(self) -> str:
        """For people: ``STEP@KEY``, the key cut short."""
        return f"{self.step}@{self.key[:8]}"

    @property
    def made_by(self) -> dict[str, Json]:
        """What stands for the code in the recipe; as :attr:`pipeline.step.Step.made_by`."""
        recipe: Any = self.recipe
        return {name: recipe[name] for name in ("version", "code") if name in recipe}

    def digest_of(self, part: str | None) -> str:
        """The digest of the artifact, or of its files under the folder ``part``.

        A part's digest is over names within the part, so equal parts are equal wherever they lie;
        it never equals that of a whole artifact, whose files a step would find elsewhere.
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
            known = ", ".join(parts) or "none"
            raise TemperError(f"the output of {self.step} has no part {part!r}; it has: {known}")
        return inside

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, url: str) -> "Manifest":
        """
        Raises:
            TemperError: it is not one; says what to do.
        """
        try:
            return cls.from_dict(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TemperError(
                f"{url} is damaged ({error}); delete it, and the step will be run again"
            ) from error

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Manifest":
        """
        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is no manifest, or says of its key
                or content what is not so.
        """
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        known["inputs"] = tuple(InputEntry(**entry) for entry in data["inputs"])
        known["files"] = {name: FileEntry(**entry) for name, entry in data["files"].items()}
        made = cls(**known)
        if hash_json(made.recipe) != made.key:
            raise ValueError("its key is not that of its recipe")
        if files_digest(made.files) != made.digest:
            raise ValueError("its digest is not that of its files")
        texts = [made.attempt, *(text for i in made.inputs for text in (i.step, i.key, i.digest))]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a name in it is no text")
        if not isinstance(made.metrics, dict) or not isinstance(made.provenance, dict):
            raise TypeError("its metrics or its provenance are no mapping")
        return made

    def require_place(self, step: str, key: str, generation: int) -> None:
        """
        Raises:
            ValueError: this is the manifest of something else.
        """
        if (self.step, self.key, self.generation) != (step, key, generation):
            raise ValueError(f"it is the manifest of {self.name}, generation {self.generation}")


def files_digest(files: Mapping[str, FileEntry]) -> str:
    """The digest of a set of content files: what an artifact *is*, however it was made."""
    return hash_json({name: [entry.size, entry.blake3] for name, entry in files.items()})
