"""The few operations that a store needs of a file system, for local disks and object stores.

An object has a path within its file system, and readers see it whole or not at all. Writers compete
only in :meth:`Objects.create`, which exactly one of them wins. It uses a hard link on local disk,
the generation precondition of GCS, and ``If-None-Match`` of S3. Every listing is one (paged)
request and never comes from a cache. "Not found" and "exists already" are results. Every other
error, of whatever library, is raised as :class:`OSError` with the original as its cause, so callers
catch only one type.

Nothing outside the root is touched, whatever the root contains. An object whose name would lead
elsewhere (``a/../../b``) is in no listing and is never downloaded. In a local folder, links below
the top level are not followed.

A client may repeat a request whose answer was lost. A repeated ``create`` finds the object of its
first attempt and returns ``False``. Where that matters, the content identifies its writer.
"""

import contextlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.base.errors import TemperError
from pipeline.base.extras import require_installed
from pipeline.store.network_timeouts import require_answer, telling_of_silence
from pipeline.store.untrusted_input import is_file

_ONE_SLASH = re.compile(r"([a-z][a-z0-9]+):/(?!/)")
"""The beginning of a URL that lacks a slash, and would be the name of a folder."""
_KEPT_ERRORS = (PermissionError, FileNotFoundError)
"""What callers tell from other errors of a bucket."""
SHOWN_BYTES = 40
"""How much of an object an error shows."""
_LONG = ("copy", "copy to", "remove all of")
"""What is many requests, or large ones."""
S3_CONFLICT_TRIES = 20
S3_CONFLICT_SECONDS = 0.1
# gcsfs logs the traceback of an error that it raises; without a handler Python would print it.
logging.getLogger("gcsfs").addHandler(logging.NullHandler())
_FOLDER_TRIES = 10
VERSION_FIELDS = ("generation", "etag", "ETag", "LastModified", "last_modified", "mtime", "created")


@dataclass(frozen=True)
class Entry:
    """One object in a listing.

    Args:
        size: in bytes.
        version: changes whenever the object is replaced.
    """

    name: str
    size: int
    version: str


@dataclass
class Listing:
    """The content of a folder: objects by their path relative to it, its subfolders, and apart from
    these, ``strange`` paths, which are no valid file names."""

    objects: dict[str, Entry] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    def within(self, prefix: str) -> dict[str, int]:
        """The size of every object below a subfolder (``""`` or with a final slash), by relative
        path; strange paths have size -1."""
        found = {path: entry.size for path, entry in self.objects.items()}
        found |= dict.fromkeys(self.strange, -1)
        return {p.removeprefix(prefix): size for p, size in found.items() if p.startswith(prefix)}

    def set_strange_apart(self) -> None:
        self.strange = [path for path in (*self.objects, *self.folders) if not is_file(path)]
        self.folders = [path for path in self.folders if is_file(path)]
        for path in self.strange:
            self.objects.pop(path, None)


def open_objects(url: str, is_patient: bool = False) -> tuple["Objects", str]:
    """Open the file system of a path or fsspec URL; also return the path within it, without a final
    slash.

    Args:
        is_patient: leave it to the client of a bucket how long it tries to reach it.

    Raises:
        TemperError: the URL is invalid, its file system is not installed, or nothing answers there.
    """
    if not isinstance(url, str):
        raise TemperError(f"store={url!r}: give a path or URL as text, as in store='store'")
    if not url:
        raise TemperError("the store has no name; set store=PATH_OR_URL (or TEMPER_STORE)")
    scheme = _ONE_SLASH.match(url)
    if scheme and scheme[1] not in LocalFileSystem.protocol and not Path(f"{scheme[1]}:").exists():
        raise TemperError(
            f"store {url!r} is neither a path nor a URL: an address has two slashes, as in "
            f"gs://BUCKET/PATH or s3://BUCKET/PATH; a folder of that name is ./{url}"
        )
    if bucketless := re.match("(gc?s|s3a?)://(/|$)", url):  # before a client looks for credentials
        raise TemperError(f"store {url!r} names no bucket, as in {bucketless[1]}://BUCKET/PATH")
    if re.match("gc?s://", url) and not is_patient:
        _require_gcs(url)
    try:
        with telling_of_silence(url):
            fs, root = fsspec.url_to_fs(url, use_listings_cache=False)
    except (ValueError, ImportError) as error:
        if url.startswith("s3://"):
            require_installed(["s3fs"], f"the store {url}")
        raise TemperError(
            f"store {url!r} is not a path or URL that can be opened: {error}; name a folder, or a "
            "bucket as in gs://BUCKET/PATH or s3://BUCKET/PATH"
        ) from None
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
    kind = next((KINDS[protocol] for protocol in protocols if protocol in KINDS), Objects)
    root = root.rstrip("/")
    return kind(fs, root), root


def _require_gcs(url: str) -> None:
    """Raise `TemperError` if nothing answers where Google's buckets are. To open a bucket already
    looks for credentials in the network."""
    with contextlib.suppress(ImportError):  # which opening reports
        anyone = fsspec.filesystem("gcs", token="anon", skip_instance_cache=True)
        if anyone.session_kwargs.get("trust_env"):
            return  # through a proxy
        try:
            require_answer(anyone.base)
        except OSError as error:
            raise TemperError(
                f"cannot open {url}: {error}; check that address and the network"
            ) from None


class Objects:
    """The objects below a root, in any fsspec file system whose ``pipe_file`` supports
    ``mode="create"``."""

    is_local = False

    def __init__(self, fs: Any, root: str = ""):
        self._fs = fs
        self._root = root
        self._process = os.getpid()
        self._inherited: list[Any] = []

    @property
    def fs(self) -> Any:
        """The file system; a forked process opens it again, since connections do not survive."""
        if self._process != os.getpid():
            self._inherited.append(self._fs)  # if collected here, it would close the parent's
            self._fs = type(self._fs)(*self._fs.storage_args, **self._fs.storage_options)
            self._process = os.getpid()
        return self._fs

    def url_of(self, path: str) -> str:
        """The address of a path, which a person or another process can open."""
        return self.fs.unstrip_protocol(path)

    def read(self, path: str) -> bytes | None:
        """The bytes of an object; ``None`` if there is none.

        Raises:
            OSError: also if what answers is no JSON but a page, as gateways send in place of what
                they cannot reach.
        """
        with self._failures_of("read", path):
            try:
                data: bytes = self.fs.cat_file(path)
            except (FileNotFoundError, IsADirectoryError):
                return None
            if path.endswith(".json") and (page := data[:SHOWN_BYTES].strip()).startswith(b"<"):
                raise OSError(
                    f"it begins with {page.decode(errors='replace')!r}, which Temper never writes: "
                    "a gateway or proxy may have answered in place of the bucket"
                )
            return data

    def create(self, path: str, data: bytes) -> bool:
        """Create an object unless it exists. Return whether this call created it."""
        with self._failures_of("create", path):
            try:
                self.fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True

    def replace(self, path: str, data: bytes) -> None:
        """Write or replace an object; readers see either the old or the new one."""
        with self._failures_of("write", path):
            self.fs.pipe_file(path, data)

    def remove(self, path: str) -> None:
        """Remove an object if it exists."""
        with self._failures_of("remove", path), contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all its content if it exists."""
        with self._failures_of("remove all of", path), contextlib.suppress(FileNotFoundError):
            self.fs.rm(path, recursive=True)

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in a folder, without those that start with a dot."""
        found = self._listing_of(folder, recursive=False).folders
        return sorted(name for name in found if not name.startswith("."))

    def sizes(self, folder: str) -> dict[str, int]:
        """The size of every object below a folder, by relative path."""
        found = self._listing_of(folder, recursive=True).objects
        return {path: entry.size for path, entry in sorted(found.items())}

    def below(self, folder: str) -> Listing:
        """The whole content of a folder."""
        return self._listing_of(folder, recursive=True)

    def strangers(
        self, folder: str, known: Collection[str], listed: Collection[str] | None = None
    ) -> list[str]:
        """The content of a folder, which may have been listed already, besides the known files."""
        return sorted({*(self.below(folder).within("") if listed is None else listed)} - {*known})

    def list(self, folder: str) -> list[Entry]:
        """The objects directly in a folder, sorted by name, without those that start with a dot."""
        entries = self._listing_of(folder, recursive=False).objects.values()
        visible = (entry for entry in entries if not entry.name.startswith("."))
        return sorted(visible, key=lambda entry: entry.name)

    def download(self, folder: str, local: Path) -> None:
        """Copy a folder to local disk; without one, make an empty folder. Raise `OSError` if the
        copy failed or is incomplete."""
        found = self._listing_of(folder, recursive=True)
        if found.strange:
            raise OSError(f"{self.url_of(folder)} holds {found.strange[0]!r}: no name of a file")
        sizes = {path: entry.size for path, entry in found.objects.items()}
        local.mkdir(parents=True, exist_ok=True)
        self.get({f"{folder}/{path}": local / path for path in sizes})
        _require_same(sizes, _local_sizes(local), str(local))

    def upload(self, local: Path, folder: str) -> None:
        """Copy a folder from local disk. Raise `OSError` if the copy failed or is incomplete."""
        sizes = _local_sizes(local)
        self.put({f"{folder}/{path}": local / path for path in sizes})
        _require_same(sizes, self.sizes(folder), self.url_of(folder))

    def get(self, files: Mapping[str, Path]) -> None:
        """Copy objects to local files, in parallel."""
        with self._failures_of("copy", os.path.commonpath([*files] or ["nothing"])):
            for parent in {target.parent for target in files.values()}:
                parent.mkdir(parents=True, exist_ok=True)
            self.fs.get(list(files), [str(target) for target in files.values()])

    def put(self, files: Mapping[str, Path]) -> None:
        """Copy local files to objects, in parallel."""
        with self._failures_of("copy to", os.path.commonpath([*files] or ["nothing"])):
            self.fs.put([str(source) for source in files.values()], list(files))

    def _listing_of(self, folder: str, recursive: bool) -> Listing:
        with self._failures_of("list", folder), contextlib.suppress(FileNotFoundError):
            found = self._listing(folder, recursive)
            found.set_strange_apart()
            return found
        return Listing()

    def _listing(self, folder: str, recursive: bool) -> Listing:
        if recursive:
            found = list(self.fs.find(folder, detail=True).values())
        else:
            found = self.fs.ls(folder, detail=True, refresh=True)
        below = f"{folder}/"
        listing = Listing()
        for info in found:
            path = info["name"].removeprefix(below).rstrip("/")
            if not info["name"].startswith(below) or not path:
                continue  # the folder itself
            if info["type"] == "directory":
                listing.folders.append(path)
            else:
                listing.objects[path] = _entry(path, info["size"], info)
        return listing

    @contextlib.contextmanager
    def _failures_of(self, action: str, path: str) -> Iterator[None]:
        url = self.url_of(path)
        is_long = action in _LONG  # it takes minutes while the store answers
        try:
            with contextlib.nullcontext() if is_long else telling_of_silence(url):
                yield
        except Exception as error:
            if isinstance(error, OSError) and (path in str(error) or error.errno is not None):
                raise
            reason = str(error) or type(error).__name__
            kept = (kind for kind in _KEPT_ERRORS if isinstance(error, kind))
            raise next(kept, OSError)(f"cannot {action} {url}: {reason}") from error


class LocalObjects(Objects):
    """Files of this machine, or of a network file system that it has mounted."""

    is_local = True

    def url_of(self, path: str) -> str:
        return path

    def read(self, path: str) -> bytes | None:
        self.require_own(path)
        with naming_what_blocks(path):
            try:
                with open(path, "rb", opener=_open_at_once) as file:
                    return file.read()
            except (FileNotFoundError, IsADirectoryError):
                return None

    def create(self, path: str, data: bytes) -> bool:
        """Write a temporary file, flush it to disk, then link it: creating a link is atomic."""
        self.require_own(path)
        if os.path.lexists(path):
            return False
        with _temporary_beside(Path(path)) as temporary:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                # A network file system may have lost the answer to a link that succeeded.
                return temporary.stat().st_nlink == 2
        return True

    def replace(self, path: str, data: bytes) -> None:
        self.require_own(os.path.dirname(path))  # if the path itself is a link, it is replaced
        with _temporary_beside(Path(path)) as temporary:
            temporary.write_bytes(data)
            os.replace(temporary, path)

    def remove(self, path: str) -> None:
        self.require_own(os.path.dirname(path))
        Path(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        self.require_own(os.path.dirname(path))
        while os.path.lexists(path):  # repeat if another process removes it at the same time
            with contextlib.suppress(FileNotFoundError):
                if not os.path.isdir(path) or os.path.islink(path):
                    os.unlink(path)
                    continue
                try:
                    shutil.rmtree(path)
                except PermissionError:
                    _make_folders_writable(path)
                    shutil.rmtree(path)

    def strangers(
        self, folder: str, known: Collection[str], listed: Collection[str] | None = None
    ) -> list[str]:
        """Also finds what a listing leaves out: links, pipes, empty folders."""
        self.require_own(folder)
        return strangers(folder, known)

    def download(self, folder: str, local: Path) -> None:
        self.require_own(folder)
        local.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(folder):
            shutil.copytree(
                folder, local, copy_function=shutil.copyfile, dirs_exist_ok=True, ignore=_links
            )

    def upload(self, local: Path, folder: str) -> None:
        self.require_own(folder)
        shutil.copytree(local, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
        _require_same(_local_sizes(local), self.sizes(folder), folder)

    def require_own(self, path: str) -> None:
        """Raise `OSError` if a link in the path would lead out of the store."""
        below = path.removeprefix(f"{self._root}/")
        if not self._root or below == path:
            return
        top, _, rest = below.partition("/")  # users with several disks may link top-level folders
        place = f"{self._root}/{top}"
        if not is_file(below):
            raise OSError(f"{path} is no name within the store")
        for part in rest.split("/") if rest else ():
            place = f"{place}/{part}"
            if os.path.islink(place):
                raise OSError(f"{place} is a link, and a store has none; delete the link")

    def _listing(self, folder: str, recursive: bool) -> Listing:
        self.require_own(folder)
        listing = Listing()
        with naming_what_blocks(folder):
            found = list(scan(folder, "", recursive))
        for path, item in found:
            if item.is_dir(follow_symlinks=False):
                listing.folders.append(path)
                continue
            if item.is_symlink():
                continue  # links are no objects
            with contextlib.suppress(FileNotFoundError):  # removed since, or a broken link
                stat = item.stat()
                version = f"{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ino}"
                listing.objects[path] = Entry(item.name, stat.st_size, version)
        return listing


@contextlib.contextmanager
def naming_what_blocks(path: str) -> Iterator[None]:
    """Raise `OSError` that names the file which lies where a local store has a folder."""
    try:
        yield
    except (NotADirectoryError, FileExistsError):
        places = [*reversed(Path(path).parents), Path(path)]
        if lost := next((p for p in places if p.is_symlink() and not p.exists()), None):
            raise OSError(f"{lost} is a link to {os.readlink(lost)}, which is not there") from None
        files = [place for place in places if place.exists() and not place.is_dir()]
        if not files:
            raise
        raise OSError(f"{files[0]} is a file where a store has a folder; move it away") from None


def make_folder(folder: Path) -> None:
    """Make a folder of a local store, with those above it, unless it exists."""
    with naming_what_blocks(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a named pipe gives no bytes, where it would keep its reader waiting."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class GcsObjects(Objects):
    """Google Cloud Storage, through gcsfs, with one request for a listing: gcsfs's ``ls`` sends
    another one if a folder is empty."""

    def _listing(self, folder: str, recursive: bool) -> Listing:
        bucket, _, prefix = f"{folder}/".partition("/")
        listing, token = Listing(), None
        while True:
            query = {"prefix": prefix or None, "delimiter": None if recursive else "/"}
            page = self.fs.call("GET", "b/{}/o", bucket, **query, pageToken=token, json_out=True)
            _add(listing, prefix, page.get("items", []), "name", "size")
            listing.folders += [name[len(prefix) : -1] for name in page.get("prefixes", [])]
            token = page.get("nextPageToken")
            if token is None:
                return listing


class S3Objects(Objects):
    """Amazon S3 and compatible stores, through s3fs, with one request for a listing: s3fs's ``ls``
    also lists the parent of an empty folder."""

    def create(self, path: str, data: bytes) -> bool:
        with self._failures_of("create", path):
            for _ in range(S3_CONFLICT_TRIES):
                try:
                    self.fs.pipe_file(path, data, mode="create")
                    return True
                except FileExistsError:
                    return False
                except OSError as error:
                    code = _s3_code(error)
                    if code in ("PreconditionFailed", "412"):  # some compatible stores send this
                        return False
                    if code != "ConditionalRequestConflict":
                        raise
                # Another writer is active: AWS requires a retry to decide which was first.
                time.sleep(S3_CONFLICT_SECONDS)
        raise OSError(f"cannot create {self.url_of(path)}: others keep trying to write it")

    def _listing(self, folder: str, recursive: bool) -> Listing:
        bucket, _, prefix = f"{folder}/".partition("/")
        request = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "" if recursive else "/"}
        listing = Listing()
        while True:
            page = self.fs.call_s3("list_objects_v2", **request)
            _add(listing, prefix, page.get("Contents", []), "Key", "Size")
            names = [found["Prefix"] for found in page.get("CommonPrefixes", [])]
            listing.folders += [name[len(prefix) : -1] for name in names]
            if not page.get("IsTruncated"):
                return listing
            request["ContinuationToken"] = page["NextContinuationToken"]


KINDS = {"file": LocalObjects, "local": LocalObjects, "gs": GcsObjects, "s3": S3Objects}


def _entry(path: str, size: int, info: dict[str, Any]) -> Entry:
    version = "-".join(str(info[name]) for name in VERSION_FIELDS if name in info)
    return Entry(path.rsplit("/", 1)[-1], size, f"{size}-{version}")


def _add(listing: Listing, prefix: str, page: list[dict[str, Any]], name: str, size: str) -> None:
    """Add a page of an object store's listing, without placeholder objects for folders."""
    for info in page:
        path = info[name][len(prefix) :]
        if path and not path.endswith("/"):
            listing.objects[path] = _entry(path, int(info[size]), info)


def _s3_code(error: OSError) -> str:
    response: dict[str, Any] = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _links(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if os.path.islink(os.path.join(folder, name))]


def strangers(folder: str, known: Collection[str]) -> list[str]:
    """The content of a local folder besides the known files: files, links, empty folders."""
    if os.path.islink(folder):
        return ["."]
    if not os.path.isdir(folder):
        return []
    parents = {"/".join(parts[:n]) for parts in (name.split("/") for name in known)
               for n in range(1, len(parts))}  # fmt: skip
    return sorted(
        path
        for path, item in scan(folder, "", True)
        if path not in (parents if item.is_dir(follow_symlinks=False) else known)
        or item.is_symlink()
    )


def scan(folder: str, below: str, recursive: bool) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything in a folder, by relative path; links to folders are not followed."""
    with os.scandir(folder) as items:
        for item in items:
            yield below + item.name, item
            if recursive and item.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield from scan(item.path, f"{below}{item.name}/", recursive)


def is_within(folder: Path, path: Path) -> bool:
    """Whether a path, with all links followed, leads to a place in the folder or to itself."""
    real = os.path.realpath(folder)
    return os.path.commonpath([real, os.path.realpath(path)]) == real


def target_within(folder: Path, link: Path) -> str | None:
    """The target of a link in a folder, such that it holds in a copy of the folder: relative, and
    itself a link where the link leads to one. ``None`` if the link leads out of the folder."""
    if not is_within(folder, link):
        return None
    target = link.parent / os.readlink(link)
    place = Path(os.path.realpath(target.parent), target.name)
    if target.name == ".." or not is_within(folder, place.parent):
        place = Path(os.path.realpath(target))
    return os.path.relpath(place, os.path.realpath(link.parent))


def _local_sizes(folder: Path) -> dict[str, int]:
    found = scan(str(folder), "", True)
    return {path: item.stat().st_size for path, item in found if item.is_file()}


def _require_same(sent: dict[str, int], arrived: dict[str, int], place: str) -> None:
    short = [path for path, size in sent.items() if arrived.get(path) != size]
    if short:
        raise OSError(f"{len(short)} of {len(sent)} files came short in {place}, as {short[0]}")


def _make_folders_writable(path: str) -> None:
    os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):  # top down: open a folder before looking into it
        for name in names:
            below = os.path.join(folder, name)
            if not os.path.islink(below):
                os.chmod(below, 0o700)


@contextlib.contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    for tries_left in reversed(range(_FOLDER_TRIES)):
        try:
            make_folder(path.parent)
            temporary.touch(exist_ok=False)  # from now on the folder cannot be removed as empty
            break
        except FileNotFoundError:  # `temper gc` has just removed it
            if not tries_left:
                raise
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
