"""Inputs of a DAG from outside, each identified by something that cannot change.

- A :class:`File` is identified by its content, wherever it lies: a local file by the digest of its
  bytes, an object by the checksum that its store reports, so that planning downloads nothing.
- A :class:`HubModel` or :class:`HubDataset` is identified by a commit. A branch or tag, which may
  move, is resolved to its present commit when the object is made.

A process sees one version of each, until :func:`forget_sources`.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.base.errors import TemperError
from pipeline.base.redaction import meet, shown
from pipeline.dag.canonical import Json, added_field, execution_detail, hash_json
from pipeline.dag.digests import file_digests
from pipeline.dag.files import describe_stream

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SUFFIX = re.compile(r"\.\w+(\.(?i:gz|zst|bz2|xz))?$")
_OUTSIDE = re.compile(r"://|^/|(^|/)\.\.(/|$)")
_NAME = re.compile(r"[\w.-]+")
_HUB_SECONDS = 30.0


RESOLVERS: list[Callable[[str], str | None]] = []
"""Functions that know addresses by name: of tags, in :mod:`pipeline.store.names.tags`."""


@dataclass(frozen=True)
class File:
    """A file or folder at a local path or fsspec URL, or the content of a tagged artifact.

    It is identified by its content, and by its suffix, which determines how it is read; not by its
    path.
    """

    url: str

    def __post_init__(self) -> None:
        if isinstance(self.url, PurePath):
            object.__setattr__(self, "url", str(self.url))
        if not isinstance(self.url, str):
            raise TemperError(f"File({self.url!r}): give a path or URL as text")
        if _NAME.fullmatch(self.url) and not os.path.lexists(self.url):
            for address in filter(None, (resolve(self.url) for resolve in RESOLVERS)):
                object.__setattr__(self, "url", address)

    def identity(self) -> Json:
        return {"content": source_identity(self.url), "suffix": self._suffix()}

    def _suffix(self) -> str | None:
        """The suffix, which determines the reader: ``.jsonl.gz``; ``None`` for a folder."""
        found = _SUFFIX.search(fsspec.url_to_fs(self.url)[1])
        return found[0] if found and _look_at(_absolute(self.url)).is_file else None


@dataclass(frozen=True)
class HubModel:
    """A model repository on the Hugging Face Hub at one commit.

    Attributes:
        revision: the commit; a branch or tag is resolved to a commit when the object is made.
        requested: the branch or tag that was given, for the record; ``None`` for a commit.

    Raises:
        TemperError: the revision is no commit, and the Hub cannot resolve it.
    """

    repo: str
    revision: str = "main"
    requested: str | None = execution_detail(None)

    def __post_init__(self) -> None:
        _pin(self, "model")


@dataclass(frozen=True)
class HubDataset:
    """One split of a dataset repository on the Hugging Face Hub at one commit.

    ``revision`` and ``requested`` are the same as in :class:`HubModel`.

    Attributes:
        name, data_dir, data_files: the config, or the folder or files of the repository, that are
            read, as in ``datasets.load_dataset``. A data set with several configs needs a name.

    Raises:
        TemperError: as of :class:`HubModel`, or a folder or file lies outside of the repository,
            so that no commit identifies it.
    """

    repo: str
    revision: str
    split: str
    requested: str | None = execution_detail(None)
    name: str | None = added_field(None, before=None)
    data_dir: str | None = added_field(None, before=None)
    data_files: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = added_field(
        None, before=None
    )

    def __post_init__(self) -> None:
        if outside := [p for p in _texts([self.data_dir, self.data_files]) if _OUTSIDE.search(p)]:
            raise TemperError(
                f"dataset {self.repo}: {outside[0]} is not in the repository, whose commit is all "
                "that identifies its files; name files by their paths in it, others with File"
            )
        _pin(self, "dataset")


def packaged_file(package: str, filename: str, install: str, instead: str = "") -> File:
    """A data file that an installed Python package ships, found without importing the package.

    Args:
        install: the command that installs the package, for the error if it is missing.
        instead: what else one can do, for this error.
    """
    spec = find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        if (Path(folder) / filename).is_file():
            return File(str(Path(folder) / filename))
    missing = f"the package {package!r}" if spec is None else f"{filename} in package {package!r}"
    raise TemperError(f"cannot find {missing}; {instead}install it with: {install}")


def source_identity(url: str) -> Json:
    """A value that identifies the content at ``url``.

    For a file: the BLAKE3 digest of its bytes, or an object's checksum from its store. For a
    folder: a hash of the relative names and identities of its files. It is computed once in a
    process, so a plan sees one version of a file.

    Raises:
        TemperError: nothing is there, it cannot be read, or it changed while it was read.
    """
    return _look_at(_absolute(url)).content


def forget_sources() -> None:
    """Forget the state of every file, folder and branch, so that they are looked up again."""
    _look_at.cache_clear()
    _commit_of.cache_clear()


def _absolute(url: str) -> str:
    """The absolute path or URL: a relative path would change its meaning with the working folder. A
    leading ``~`` is refused, since only a shell expands it."""
    if not url or "://" in url or "::" in url:
        return url
    if url.startswith("~") and not os.path.lexists(url):
        raise TemperError(f"input {url}: only a shell knows ~; write {os.path.expanduser(url)}")
    return str(Path.cwd() / url)


@dataclass(frozen=True)
class _Source:
    content: Json
    is_file: bool


@cache
def _look_at(url: str) -> _Source:
    meet(url)
    try:
        if not url:
            raise ValueError("it has no name")
        # a chain may begin with a cache (simplecache::), which a new one does not share
        fresh = {"skip_instance_cache": True} if "::" in url else {}
        fs, path = fsspec.url_to_fs(url, **fresh)
        fs.invalidate_cache()
        files = _files(fs, path)
        contents = _contents(fs, files)
    except TemperError:
        raise
    except Exception as error:  # libraries behind fsspec have no common base class of errors
        message = f"cannot read input {shown(url)}: {shown(_one_line(error))}{_remedy(error, url)}"
        # the library's error may contain a secret URL, and Python would print it as the cause
        raise TemperError(message) from (error if shown(url) == url else None)
    if not files and os.path.isdir(path):
        raise TemperError(f"input {shown(url)} is a folder without files")
    if not files:
        checked = "address" if "://" in url else f"path (now in {Path.cwd()})"
        raise TemperError(f"input {shown(url)} does not exist; check the {checked}")
    if list(files) == [path]:
        return _Source(contents[path], is_file=True)
    prefix = f"{path.rstrip('/')}/"
    return _Source(hash_json({n.removeprefix(prefix): c for n, c in contents.items()}), False)


def _files(fs: Any, path: str) -> dict[str, Mapping[str, Any]]:
    """The file at ``path``, or the files below it, with the file system's information on each."""
    if isinstance(fs, LocalFileSystem):
        try:
            os.stat(path)  # unlike `isfile`, it tells a folder that nobody may enter from none
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
        return {path: {}} if os.path.isfile(path) else {n: {} for n in files_below(path)}
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return {}
    if info["type"] == "file":
        return {path: info}
    return {
        name: found
        for name, found in fs.find(path, detail=True).items()
        if not name.endswith("/")  # in object stores, a placeholder for an empty folder
    }


def files_below(folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The files below a local folder; a link to a folder counts as that folder.

    Raises:
        TemperError: it contains something without content, or a link to a folder around it.
    """
    if not os.path.isdir(folder):
        if os.path.lexists(folder):
            raise TemperError(_unreadable(folder))
        return
    place = os.path.realpath(folder)
    if place in above:
        raise TemperError(
            f"cannot read input {folder}: it is a link to {place}, in which it lies; delete it"
        )
    with os.scandir(folder) as items:
        for item in sorted(items, key=lambda item: item.name):
            if item.is_dir():
                yield from files_below(item.path, (*above, place))
            elif item.is_file():
                yield item.path
            else:
                raise TemperError(_unreadable(item.path))


def _unreadable(path: str) -> str:
    """The error for a path that has no content."""
    if not os.path.exists(path):
        what = f"it is a link to {os.readlink(path)}, where nothing is; delete or mend it"
    else:
        what = f"{os.path.basename(path)} is not a regular file, but a pipe, socket or device; "
        what += "write its content to a file, and name that"
    return f"cannot read input {path}: {what}"


def _contents(fs: Any, files: Mapping[str, Mapping[str, Any]]) -> dict[str, Json]:
    """The identity of each file by name, in sorted order, so that errors are reproducible."""
    names = sorted(files)
    if isinstance(fs, LocalFileSystem):
        return dict(zip(names, file_digests(names), strict=True))
    checksums = {name: _checksum(fs, name, files[name]) for name in names}
    return {name: checksums[name] or _remote_digest(fs, name) for name in names}


def _checksum(fs: Any, name: str, info: Mapping[str, Any]) -> Json:
    """The identity of an object from its listing; ``None`` if its store reports none.

    Google's MD5 is the hash of the content. A composite object has only a CRC, which is too weak
    alone, so the object's generation, which no other upload has, is included. Amazon's ETag is the
    MD5 of the content for a plain upload. For a multipart upload it is computed from the MD5 of the
    parts, so the same bytes uploaded with another part size have another identity; so has every
    upload of an object that is encrypted with a customer's key. Then a step may rerun needlessly,
    but never misses a rerun. An object that Google keeps compressed is decompressed for a reader
    if its encoding says so, which may be edited alone.
    """
    coded = {"encoding": code} if (code := info.get("contentEncoding")) else {}
    match fs.protocol:
        case ("gs", *_) if info.get("md5Hash"):
            return {"md5": info["md5Hash"], **coded}
        case ("gs", *_) if "generation" in info:
            known = {key: info.get(key) for key in ("crc32c", "size", "generation")}
            return {**known, "url": fs.unstrip_protocol(name), **coded}
        case ("s3", *_) if info.get("ETag"):
            return {"etag": info["ETag"].strip('"'), "size": info["size"]}
    return None


def _remote_digest(fs: Any, path: str) -> str:
    with fs.open(path, "rb") as file:
        return describe_stream(file).blake3


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value of ``data_files``."""
    if isinstance(value, str):
        yield value
    elif value is not None:
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _pin(source: HubModel | HubDataset, kind: str) -> None:
    """Replace a branch or tag by its present commit."""
    if not _COMMIT.fullmatch(source.revision):
        requested = source.revision or "main"
        object.__setattr__(source, "requested", requested)
        object.__setattr__(source, "revision", _commit_of(kind, source.repo, requested))


@cache
def _commit_of(kind: str, repo: str, revision: str) -> str:
    from huggingface_hub import HfApi

    try:
        lookup = HfApi().model_info if kind == "model" else HfApi().dataset_info
        commit = lookup(repo, revision=revision, timeout=_HUB_SECONDS, expand=["sha"]).sha or ""
        if not _COMMIT.fullmatch(commit):
            raise ValueError(f"the Hub answered with the commit {commit!r}")
    except Exception as error:  # the Hub's and its HTTP library's errors have no common base
        raise TemperError(
            f"cannot find out which commit the {kind} {repo} has at revision {revision!r} "
            f"({_reason_and_remedy(error, kind)}"
        ) from error
    return commit


def _reason_and_remedy(error: Exception, kind: str) -> str:
    """Why the Hub named no commit, and behind the parenthesis what to do."""
    from huggingface_hub import errors

    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(error, errors.HFValidationError):
        return f"that is no name of a {kind}); name it as OWNER/NAME"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the Hub knows no such revision); name a branch, a tag or a commit of it"
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403, 404):
        refused = status == 403
        known = "does not give it to you" if refused else "knows none of that name, or hides it"
        return f"the Hub {known}); check the name, ask for access, or log in: hf auth login"
    return f"{_one_line(error)}); try again, or give the full 40-digit commit as its revision"


def _remedy(error: Exception, url: str) -> str:
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "; delete the link, which leads to itself"
    return "; check the address, the network and the credentials" if "://" in url else ""


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
