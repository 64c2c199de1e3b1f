"""Loads the files of an artifact as Python values, by their file type; see :meth:`Made.load`.

A kind with other files than tables registers its own loader, on the function that makes its views:

    @loaded_by(open_model)
    def model(made: Made) -> Iterator[View]: ...
"""

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.base.text import hint
from pipeline.dag.canonical import resolve_reference
from pipeline.show.artifact_handle import Made
from pipeline.show.views import Loader, loader_of
from pipeline.store.catalog import Catalog
from pipeline.store.kinds import known_kind
from pipeline.store.wholes import whole_content

_SHARD = re.compile(r"-\d{5,}(-of-\d{5,})?$")


def load(made: Made, name: str = "") -> Any:
    """Load a whole artifact, or its file or folder ``name``; see :meth:`Made.load`."""
    if not name and (loader := _loader(made)) is not None:
        made.require_intact(made.files)
        kind = known_kind(made.manifest)
        if kind.assemble is None:
            return loader(made.path)
        with whole_content(Catalog(made.store), made.manifest, None, kind) as folder:
            return loader(folder)
    chosen = _chosen(made, name)
    tables: dict[str, list[str]] = {}
    for file in chosen:
        if Path(file).suffix in _READERS:
            tables.setdefault(_table(file.removeprefix(f"{name}/")), []).append(file)
    if not tables:
        raise TemperError(
            f"{made.name}: nothing in {name or 'it'} is {', '.join(_READERS)}, which load() reads; "
            f"the files are in {made.url}"
        )
    made.require_intact(file for files in tables.values() for file in files)
    folder = made.path
    values = {
        at: _READERS[Path(at).suffix]([folder / file for file in files])
        for at, files in tables.items()
    }
    return next(iter(values.values())) if len(values) == 1 else values


def _loader(made: Made) -> Loader | None:
    """The loader that the artifact's kind registers; ``None`` if it has none or is unknown here."""
    with contextlib.suppress(TemperError, ImportError, AttributeError):
        views = known_kind(made.manifest).views
        return None if views is None else loader_of(resolve_reference(views))
    return None


def _chosen(made: Made, name: str) -> list[str]:
    """The file of this name, all files of the folder, or all shards of the table of this name.

    Raises:
        TemperError: the artifact has no such file, folder or table.
    """
    inside = [file for file in made.files if not name or file.startswith(f"{name.rstrip('/')}/")]
    found = [name] if name in made.files else sorted(inside)
    found = found or sorted(file for file in made.files if _table(file) == name)
    if not found:
        known = dict.fromkeys(
            part for file in sorted(made.files) for part in (file, file.partition("/")[0])
        )
        raise TemperError(f"{made.name} has no file or folder {name!r}; {hint(name, [*known])}")
    return found


def _table(file: str) -> str:
    """The name of the table that a file belongs to: the shard ``train/tokens-00000.parquet``
    belongs to ``train/tokens.parquet``."""
    path = Path(file)
    return str(path.with_name(_SHARD.sub("", path.stem) + path.suffix))


def _parquet(files: Sequence[Path]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa.concat_tables(map(pq.read_table, files), promote_options="default")


def _lines(files: Sequence[Path]) -> list[Any]:
    lines = (line for file in files for line in file.read_bytes().splitlines())
    return [json.loads(line) for line in lines if line.strip()]


def _first(read: Callable[[str], Any]) -> Callable[[Sequence[Path]], Any]:
    return lambda files: read(files[0].read_text("utf-8"))


_READERS: dict[str, Callable[[Sequence[Path]], Any]] = {
    ".parquet": _parquet,
    ".jsonl": _lines,
    ".json": _first(json.loads),
    ".md": _first(str),
    ".txt": _first(str),
}
