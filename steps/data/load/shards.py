"""Sources of rows. A source is an ordered tuple of shards, each of which can be opened at any row.

A shard is a file, at a local path or an fsspec URL, or a streamed part of a Hub dataset at one
commit. `open_shard` yields `(number, record)`, counted from one; for an unreadable record it yields
a `MalformedRow` instead. Names of shards are relative (a file's own name, or its path within the
folder or below the fixed part of the pattern), so that labels of rows are the same on every
machine.

Supported files: `.jsonl`, `.json`, `.txt` (one row per line), `.csv`, `.tsv`, each also as `.gz`,
`.zst`, `.bz2` and `.lz4`; `.parquet` and `.arrow`; all of these under other usual endings; folders
from `datasets.save_to_disk`. If file names show several splits (`train-00000-of-00002.parquet`,
`test.jsonl`), the folder is never read as one source.
"""

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from steps.data.load.split_names import require_all, require_one
from steps.data.readers import Item
from steps.data.readers.blocks import read_blocks
from steps.data.readers.cells import separated_values
from steps.data.readers.columns import ROWS_AT_ONCE, arrow_rows, batch_rows, parquet_rows
from steps.data.readers.json_file import json_file
from steps.data.readers.lines import json_lines, text_lines
from steps.data.rows.ledger import LONE
from steps.shared.execution_detail import execution_detail, kept

_TEXT_READERS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonlines", ".jl"), json_lines), ".json": json_file,
    ".txt": text_lines, ".csv": separated_values, ".tsv": partial(separated_values, separator="\t"),
}  # fmt: skip
_TABLE_READERS = {
    **dict.fromkeys((".parquet", ".pq", ".parq"), parquet_rows),
    **dict.fromkeys((".arrow", ".ipc", ".feather"), arrow_rows),
}
_CODECS = {
    "": None, ".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4",
}  # fmt: skip
_KINDS = {
    **{kind + end: (kind, codec) for kind in _TEXT_READERS for end, codec in _CODECS.items()},
    **{kind: (kind, None) for kind in _TABLE_READERS},
}
"""For the end of a file's name, the suffix that selects its reader, and Arrow's name for its
compression."""
_READ = ".jsonl, .json, .txt, .csv, .tsv (each also .gz, .zst, .bz2 or .lz4), .parquet, .arrow"
_CODEC = re.compile(r"\.(gz|zstd?|bz2|lz4)$", re.IGNORECASE)
_UNREAD = re.compile(
    r"\.(xlsx?|avro|orc)(\.\w+)?$|\.(jsonl?|txt|[ct]sv|parquet|arrow)(\.\w+)+$", re.IGNORECASE
)
"""File names of data that are not read: of other formats, archives, and downloads that broke off
(other files, such as a licence, are ignored)."""

_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""Files that describe the data beside them, as `datasets` and LLaMA-Factory write them."""

_CACHED = re.compile(r"cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow")
"""Files that `datasets` writes beside data when it maps, filters or shuffles them: the same rows
again, or only numbers of rows."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ID_FIELDS = ("id", "prompt_id")


@dataclass(frozen=True)
class FileShard:
    """One file of rows; `name` is what labels and the ledger call it, whatever its compression."""

    url: str
    name: str


@dataclass(frozen=True)
class HubShard:
    """Part `index` of the `count` parts of a split of a Hub dataset.

    `chosen` holds those of `name`, `data_dir` and `data_files` that `datasets.load_dataset` gets.
    """

    repo: str
    revision: str
    split: str
    index: int
    count: int
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return LONE if self.count == 1 else f"{self.split}-{self.index:05d}"


Shard = FileShard | HubShard


@dataclass(frozen=True)
class Source:
    """Shards in the order in which they are read, and a name for people. One that is the whole
    source is `LONE`, so that rows have the same names in a file, a folder and on the Hub."""

    name: str
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        if len(self.shards) == 1 and isinstance(shard := self.shards[0], FileShard):
            object.__setattr__(self, "shards", (replace(shard, name=LONE),))


def open_shard(shard: Shard, start_row: int = 1) -> Iterator[Item]:
    """The rows of `shard` from `start_row` on, read lazily.

    Raises:
        OSError: the file is missing or cannot be read. Invalid content is never an error.
        ValueError: the same, where it is not on this machine.
    """
    if isinstance(shard, HubShard):
        with reaching(f"{shard.repo} on the Hub"):
            yield from _hub_rows(shard, start_row)
        return
    kind, codec = _kind(shard.url)
    filesystem, path = fsspec.url_to_fs(shard.url)
    if "//" in path:  # gcsfs takes the object for an empty folder if it has listed those above it
        filesystem.invalidate_cache()
    is_here = isinstance(filesystem, LocalFileSystem)
    naming = nullcontext() if is_here else reaching(shard.url)
    with naming, filesystem.open(path, "rb") as opened:
        if kind in _TABLE_READERS:
            yield from _TABLE_READERS[kind](opened, start_row)
        else:
            yield from _TEXT_READERS[kind](read_blocks(opened, codec), start_row)


def source_of(url: str) -> Source:
    """The files that `files_at` finds, as a source; raises what `files_at` raises."""
    return Source(url.rstrip("/").rpartition("/")[2], files_at(url))


def files_at(url: str, *, one_split: bool = False) -> tuple[FileShard, ...]:
    """The file `url`, the data files below the folder `url`, or those that the pattern matches.

    In a folder, files without data (`README.md`) are ignored; in a folder and in a pattern, also
    descriptions of data (`dataset_info.json`), caches of `datasets`, and files whose names (or
    folders' names) start with `.` or `_`. Files are sorted by name.

    Args:
        one_split: the caller selects the files of one split, so a folder may have several splits.

    Raises:
        FileNotFoundError: no file was found.
        ValueError: the suffix is unknown; or a folder has several kinds of data files, several
            splits or data sets, data in an unsupported format, one file in two compressions, or
            not all parts of a file.
    """
    with reaching(url):
        filesystem, path = fsspec.url_to_fs(url)
        shards = _shards_at(filesystem, path, url, one_split)
        is_folder = not shards and filesystem.isdir(path)
    if not shards:
        what = "the folder holds no data file" if is_folder else "no such file"
        raise FileNotFoundError(f"{url}: {what}; check the path of the data")
    for shard in shards:
        _kind(shard.url)
    return shards


def _shards_at(filesystem: Any, path: str, url: str, one_split: bool) -> tuple[FileShard, ...]:
    if _is_glob(filesystem, path):
        root, pattern = _fixed_part(path), path
        if isinstance(filesystem, LocalFileSystem) and is_pattern(above := _folder_above(path)):
            root = os.path.realpath(above)  # the folder has brackets in its name
            pattern = glob.escape(root) + path.removeprefix(above)
        names: Any = filesystem.glob(pattern)
        found = [name for name in sorted(names) if filesystem.isfile(name)]
        found = [name for name in found if not _is_hidden(name, root)]
        _refuse_broken_links(filesystem, names, url, root)
        files = _saved_by_datasets(filesystem, found, url, root) or found
        _refuse_copies(files, url, root)
        return _files(filesystem, files, root)
    if filesystem.isfile(path):
        return (FileShard(url, _bare(path.rstrip("/").rpartition("/")[2])),)
    return _folder(filesystem, path, url, one_split)


def _folder_above(path: str) -> str:
    """The longest beginning of a local pattern that is an existing folder."""
    return next(str(above) for above in Path(path).parents if above.is_dir())


@contextmanager
def reaching(source: str) -> Iterator[None]:
    """Turn errors of a network, a store or the Hub into one sentence that names the source.

    Raises:
        ValueError: the source could not be read.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, FileNotFoundError | ValueError) and source in str(error):
            raise  # it is one of ours
        told = kept(error)
        said = " ".join(str(told).split())[:300]
        raise ValueError(
            f"{source} cannot be read: {type(told).__name__}: {said}; check its name, the network "
            "and the credentials (gcloud auth application-default login; aws configure; hf auth "
            "login)"
        ) from error


def hub_source(repo: str, revision: str, split: str, **chosen: Any) -> Source:
    """`split` of the Hub dataset `repo` at the commit `revision`.

    Args:
        chosen: `name`, `data_dir` and `data_files`, as of `datasets.load_dataset`.

    Raises:
        ValueError: there is no such split, or no such config, or several and none is named; or
            `revision` is not a full commit hash. A branch or tag can change its rows, so
            results from before and after could not be distinguished.
    """
    if not _COMMIT.fullmatch(revision):
        raise ValueError(
            f"{repo}: revision {revision!r} is not a commit; give the 40 hex digits that the "
            "dataset's Hub page lists under 'History'"
        )
    with reaching(f"{repo} on the Hub"):
        count = _streamed(repo, revision, split, chosen).num_shards
    shards = tuple(HubShard(repo, revision, split, index, count, chosen) for index in range(count))
    return Source(f"{repo} ({split})", shards)


def label(record: Mapping[str, Any], fallback: str) -> str:
    """The record's own `id` or `prompt_id`, or else `fallback`."""
    for name in _ID_FIELDS:
        value = record.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        # People read labels, and they are written as UTF-8: no line breaks, no lone surrogates.
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value
    return fallback


def is_empty(source: Source) -> bool:
    """Whether a source has no rows at all, not even malformed ones."""
    return Reader(source).next() is None


@dataclass
class Reader:
    """A position in a source (`shard` and `row`), which moves as rows are taken.

    `opened` gives the rows of a file, by its number, from a row on; without it they are records.
    """

    source: Source
    shard: int = 0
    row: int = 1
    opened: Callable[[int, int], Iterator[tuple[int, Any]]] | None = None

    def __post_init__(self) -> None:
        self._rows: Iterator[tuple[int, Any]] | None = None

    def next(self) -> tuple[str, tuple[int, Any]] | None:
        """The next row with the name of its shard, or `None` at the end."""
        while self.shard < len(self.source.shards):
            shard = self.source.shards[self.shard]
            if self._rows is None:
                opened = self.opened
                self._rows = opened(self.shard, self.row) if opened else open_shard(shard, self.row)
            if (item := next(self._rows, None)) is not None:
                self.row = item[0] + 1
                return shard.name, item
            self.shard, self.row, self._rows = self.shard + 1, 1, None
        return None


def _kind(url: str) -> tuple[str, str | None]:
    for suffix, kind in _KINDS.items():
        if url.lower().endswith(suffix):
            return kind
    raise ValueError(f"{url}: {_unknown_ending(url)}")


@execution_detail
def _unknown_ending(url: str) -> str:
    """Why a file is not read, and what to do."""
    if url.startswith(("http://", "https://")) and "?" in url:
        return "has a query after its name; leave out what begins with ?, or download the file"
    return (
        f"{Path(url).suffix or 'it'} is not read; convert it, or name it by what it holds: {_READ}"
    )


def is_glob(url: str) -> bool:
    """Whether a path or URL is a glob pattern, and not the name of an existing file."""
    return _is_glob(*fsspec.url_to_fs(url))


def _is_glob(filesystem: Any, path: str) -> bool:
    is_there = isinstance(filesystem, LocalFileSystem) and Path(path).exists()
    return is_pattern(path) and not is_there


def is_pattern(path: str) -> bool:
    """Whether a path has a wildcard in it."""
    return any(character in path for character in "*?[")


def _fixed_part(pattern: str) -> str:
    """The part of a pattern before the first component with a wildcard."""
    parts = pattern.split("/")
    fixed = next(index for index, part in enumerate(parts) if is_pattern(part))
    return "/".join(parts[:fixed])


def _folder(filesystem: Any, path: str, url: str, one_split: bool) -> tuple[FileShard, ...]:
    root = path.rstrip("/")
    _refuse_links(filesystem, root, url)
    everything = sorted(filesystem.find(root))
    found = [name for name in everything if not _is_hidden(name, root)]
    readable = [name for name in found if name.lower().endswith((*_KINDS,))]
    if unread := [name for name in found if _UNREAD.search(name) and name not in readable]:
        raise ValueError(
            f"{url} holds data that cannot be read: {_few(unread, root)}; get the whole file, "
            f"convert it to one of {_READ}, or say which files are meant with a pattern"
        )
    files = _saved_by_datasets(filesystem, found, url, root) or readable
    _refuse_copies(files, url, root)
    if (description := f"{root}/{_DESCRIPTIONS[0]}") in everything:
        _refuse_several(_listed_in(filesystem, description), files, url, root)
    kinds = sorted({_kind(name)[0] for name in files})
    if len(kinds) > 1:
        raise ValueError(
            f"{url} holds files of several kinds: {', '.join(kinds)}; say which are meant, "
            f"as in {url.rstrip('/')}/*{kinds[0]}"
        )
    shards = _files(filesystem, files, root)
    require_one(url, shards, one_split=one_split)
    require_all(url, [shard.name for shard in shards])
    return shards


def _listed_in(filesystem: Any, description: str) -> set[str]:
    """The files of the data sets that LLaMA-Factory's description of a folder lists."""
    try:
        listed = json.loads(filesystem.cat_file(description))
    except (ValueError, RecursionError):
        return set()
    entries = listed.values() if isinstance(listed, dict) else ()
    return {str(entry.get("file_name")) for entry in entries if isinstance(entry, dict)}


def _refuse_several(listed: set[str], files: Sequence[str], url: str, root: str) -> None:
    found = [name for name in files if name.removeprefix(root).lstrip("/") in listed]
    if len(found) > 1:
        raise ValueError(
            f"{url} holds several data sets, which its dataset_info.json lists: "
            f"{_few(found, root)}; name the file of one, or mix them with data.mixture"
        )


def _saved_by_datasets(filesystem: Any, found: Sequence[str], url: str, root: str) -> list[str]:
    """The Arrow files of folders from `datasets.save_to_disk`, which also contain other files: a
    folder's `state.json` names its files, and others may be of what was saved there before."""
    states = [name for name in found if name.endswith("/state.json")]
    listed = {state: _named_in(filesystem, state) for state in states}
    if empty := [state for state, files in listed.items() if files == []]:
        raise ValueError(
            f"{url} holds a data set without rows: {_few(empty, root)} names no file; save rows "
            "there, or remove its folder"
        )
    arrow = {name.rpartition("/")[0] for name in found if name.endswith(".arrow")}
    if not arrow or not arrow <= {name.rpartition("/")[0] for name in states}:
        return []
    saved = [file for files in listed.values() for file in files or ()]
    if missing := sorted({*saved} - {*found}):
        raise ValueError(
            f"{url} lacks {_few(missing, root)}, which its state.json names; copy the whole "
            "folder, or save it again"
        )
    return saved


def _named_in(filesystem: Any, state: str) -> list[str] | None:
    """The files that a `state.json` of `datasets` names, in order; `None` if it is another's."""
    try:
        listed = json.loads(filesystem.cat_file(state))["_data_files"]
        return [f"{state.rpartition('/')[0]}/{file['filename']}" for file in listed]
    except (ValueError, KeyError, TypeError):
        return None


def _refuse_links(filesystem: Any, root: str, url: str) -> None:
    """Refuse links to folders: a folder's files identify it, and would not include linked ones."""
    if not isinstance(filesystem, LocalFileSystem):
        return
    linked = [
        f"{folder}/{name}"
        for folder, names, _ in os.walk(root)
        for name in names
        if os.path.islink(f"{folder}/{name}") and not _is_hidden(f"{folder}/{name}", root)
    ]
    if linked:
        raise ValueError(
            f"{url} holds a link to a folder: {_few(sorted(linked), root)}; its rows would be left "
            "out; name that folder as a source of its own (data.mixture), or put its files here"
        )


def _refuse_broken_links(filesystem: Any, names: Iterable[str], url: str, root: str) -> None:
    """Refuse links to nothing, as in a copy of a dataset of which a part was not downloaded."""
    if not isinstance(filesystem, LocalFileSystem):
        return
    broken = [name for name in names if os.path.islink(name) and not os.path.exists(name)]
    if broken := [name for name in sorted(broken) if not _is_hidden(name, root)]:
        raise ValueError(
            f"{url} matches a link to nothing: {_few(broken, root)}; its rows would be left out; "
            "get the file that it stands for, or delete it"
        )


def _refuse_copies(files: Sequence[str], url: str, root: str) -> None:
    """Refuse a file beside its compressed copy: their rows would have the same names."""
    bare = Counter(map(_bare, files))
    if twice := [name for name in files if bare[_bare(name)] > 1]:
        raise ValueError(
            f"{url} holds the same file in two compressions: {_few(twice, root)}; its rows would "
            "be read twice; remove one, or say which files are meant with a pattern"
        )


def _bare(name: str) -> str:
    """A file's name without the end that tells its compression: rows are known by these names, and
    are the same in a compressed copy."""
    return _CODEC.sub("", name)


def _few(names: Sequence[str], root: str) -> str:
    shown = [name.removeprefix(root).lstrip("/") for name in names[:5]]
    return ", ".join(shown) + (", …" if len(names) > 5 else "")


def _is_hidden(name: str, root: str) -> bool:
    parts = name.removeprefix(root).strip("/").split("/")
    ignored = parts[-1] in _DESCRIPTIONS or _CACHED.fullmatch(parts[-1]) is not None
    return ignored or any(part.startswith((".", "_")) for part in parts)


def _files(filesystem: Any, names: Sequence[str], root: str) -> tuple[FileShard, ...]:
    local = isinstance(filesystem, LocalFileSystem)
    return tuple(
        FileShard(
            name if local else filesystem.unstrip_protocol(name),
            _bare(name.removeprefix(root).lstrip("/")),
        )
        for name in names
    )


def _streamed(repo: str, revision: str, split: str, chosen: Mapping[str, Any]) -> Any:
    """A split as `datasets` streams it.

    Raises:
        ValueError: the data set has no such config or split; or it has several configs, and none
            is named.
    """
    from datasets import get_dataset_config_names, load_dataset_builder

    try:
        builder = load_dataset_builder(repo, revision=revision, **chosen)
    except ValueError:
        configs = get_dataset_config_names(repo, revision=revision)
        name = chosen.get("name")
        if name in configs if name else chosen or len(configs) < 2:
            raise
        raise ValueError(
            f"{repo} on the Hub has the configs {', '.join(configs)}; name one: data.name="
            f"{configs[0]}, in a mixture data.mixture.PART.name, in Python HubDataset(name=…)"
        ) from None
    try:
        return builder.as_streaming_dataset(split)
    except ValueError:
        splits: Any = builder.as_streaming_dataset()
        if split in splits:
            raise
        raise ValueError(
            f"{repo} on the Hub has the splits {', '.join(splits)}, and no {split}; name one with "
            "data.train_split or data.test_split (null: a share is held out), in a mixture with "
            "data.mixture.PART.split"
        ) from None


def _hub_rows(shard: HubShard, start_row: int) -> Iterator[Item]:
    from datasets.table import embed_table_storage  # it gets images that are files of their own

    rows = _streamed(shard.repo, shard.revision, shard.split, shard.chosen)
    if shard.count > 1:
        rows = rows.shard(num_shards=shard.count, index=shard.index)
    tables = rows.skip(start_row - 1).with_format("arrow").iter(batch_size=ROWS_AT_ONCE)
    batches = (batch for table in tables for batch in embed_table_storage(table).to_batches())
    yield from batch_rows(batches, start_row, start_row - 1)
