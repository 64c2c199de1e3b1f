"""The manifest: the one small JSON object whose creation is the commit of an artifact."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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
    it went (``metrics``, ``seconds``, ``provenance``). Only ``files`` bears on the digest."""

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
        try:
            fields = json.loads(data)
            fields["inputs"] = tuple(InputEntry(**entry) for entry in fields["inputs"])
            fields["files"] = {k: FileEntry(**v) for k, v in fields["files"].items()}
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TemperError(
                f"{url} is damaged ({error}); delete it, and the step will be run again"
            ) from error


def files_digest(files: Mapping[str, FileEntry]) -> str:
    """The digest of a set of content files: what an artifact *is*, however it was made."""
    return hash_json({name: [entry.size, entry.blake3] for name, entry in files.items()})
