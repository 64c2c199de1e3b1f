"""What comes into a DAG from outside, each named by something that cannot change under it.

A :class:`File` is known by the digest of its content, wherever it lies; a :class:`HubModel` or
:class:`HubDataset` by a commit. A branch name such as ``main`` is refused: what it points to can
change without any key changing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import blake3
import fsspec

from pipeline.canonical import Json, hash_json
from pipeline.errors import TemperError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SUFFIX = re.compile(r"\.\w+(\.(gz|zst|bz2|xz))?$")
_READ_BYTES = 8 * 2**20


@dataclass(frozen=True)
class File:
    """A file or folder at a local path or fsspec URL.

    Identified by its content, and by its suffix, which says how to read it; not by where it lies.
    """

    url: str

    def identity(self) -> Json:
        return {"content": content_digest(self.url), "suffix": self._suffix()}

    def _suffix(self) -> str | None:
        """What a reader goes by: ``.jsonl`` or ``.jsonl.gz``; ``None`` for a folder."""
        fs, path = fsspec.url_to_fs(self.url)
        found = _SUFFIX.search(path)
        return found[0] if found and fs.isfile(path) else None


@dataclass(frozen=True)
class HubModel:
    """A model repository on the Hugging Face Hub at one commit."""

    repo: str
    revision: str

    def __post_init__(self) -> None:
        _require_commit(self)


@dataclass(frozen=True)
class HubDataset:
    """One split of a dataset repository on the Hugging Face Hub at one commit."""

    repo: str
    revision: str
    split: str

    def __post_init__(self) -> None:
        _require_commit(self)


def packaged_file(package: str, filename: str, install: str) -> File:
    """A data file that an installed Python package ships, found without importing the package.

    Args:
        install: how to install the package, for the error when it is missing.
    """
    spec = find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        if (Path(folder) / filename).is_file():
            return File(str(Path(folder) / filename))
    missing = f"the package {package!r}" if spec is None else f"{filename} in package {package!r}"
    raise TemperError(f"cannot find {missing}; install it with: {install}")


@cache
def content_digest(url: str) -> str:
    """Digest of the bytes at ``url``; of a folder, over the relative names and bytes of its files.

    Computed once per process: a plan sees one version of a file.

    Raises:
        TemperError: nothing is there, or it cannot be read.
    """
    try:
        if not url:
            raise ValueError("it has no name")
        fs, path = fsspec.url_to_fs(url)
        if fs.isfile(path):
            return _digest_file(fs, path)
        prefix = f"{path.rstrip('/')}/"
        listing = {
            file.removeprefix(prefix): _digest_file(fs, file) for file in sorted(fs.find(path))
        }
    except (OSError, ValueError, ImportError) as error:
        raise TemperError(f"cannot read input {url}: {error}") from error
    if not listing:
        raise TemperError(f"input {url} does not exist; check the path (now in {Path.cwd()})")
    return hash_json({**listing})


def _digest_file(fs: Any, path: str) -> str:
    hasher = blake3.blake3()
    with fs.open(path, "rb") as file:
        for block in _blocks(file):
            hasher.update(block)
    return hasher.hexdigest()


def _blocks(file: Any) -> Iterator[bytes]:
    while block := file.read(_READ_BYTES):
        yield block


def _require_commit(source: HubModel | HubDataset) -> None:
    if not _COMMIT.fullmatch(source.revision):
        raise TemperError(
            f"{source.repo}: revision {source.revision!r} is not a commit; give the full 40-digit "
            "commit hash shown on the repository's Files page, so that the input cannot change"
        )
