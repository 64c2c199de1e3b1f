"""Adopts files that were made elsewhere: a dataset or checkpoint becomes an artifact."""

from pathlib import PurePath

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.dag.artifact import Artifact, Kind
from pipeline.dag.inputs import File, files_below
from pipeline.dag.step import Metrics, Output, Step, step


def adopt(url: str | PurePath, kind: Kind = Artifact) -> Step:
    """A step whose output is a copy of the file or folder at ``url``.

    The files are identified by their content: equal files elsewhere are the same artifact, and
    edited files are another one.

    Args:
        url: a local path or fsspec URL, or the tag of an artifact (``temper tag``) in the store of
            the experiment, in a script in that of ``TEMPER_STORE``, else in the folder ``store``.
        kind: the kind of the files; see :mod:`pipeline.dag.artifact`.
    """
    source = File(str(url))
    fs, path = fsspec.url_to_fs(source.url)
    name = path.rpartition("/")[2] if fs.isfile(path) else None
    return Step(adopt_files, {"source": source, "name": name}, kind)


@step(version="1")
def adopt_files(out: Output, source: File, name: str | None = None) -> Metrics:
    """Copy a file as ``name``, or all files of a folder under their relative names."""
    fs, path = fsspec.url_to_fs(source.url)
    prefix = f"{path.rstrip('/')}/"
    local = isinstance(fs, LocalFileSystem) and not fs.isfile(path)
    files = list(files_below(path)) if local else fs.find(path)  # follows links, like the key
    for number, file in enumerate(files, start=1):
        target = out.path / (name or file.removeprefix(prefix))
        target.parent.mkdir(parents=True, exist_ok=True)
        fs.get_file(file, str(target))
        out.progress(number, len(files))
    return {"files": len(files)}
