"""Bringing in what was made elsewhere: a dataset or checkpoint becomes an artifact, by content."""

import fsspec

from pipeline.artifact import Artifact, Kind
from pipeline.inputs import File
from pipeline.step import Metrics, Output, Step, step


def adopt(url: str, kind: Kind = Artifact) -> Step:
    """A step whose output is a copy of the file or folder at ``url``.

    Known by content: the same files elsewhere are the same artifact, edited ones are another.

    Args:
        url: a local path or fsspec URL.
        kind: what the files are; see :mod:`pipeline.artifact`.
    """
    return Step(adopt_files, {"source": File(url)}, kind)


@step(version="1")
def adopt_files(out: Output, source: File) -> Metrics:
    """Copy a file, or all files of a folder under their names within it."""
    fs, path = fsspec.url_to_fs(source.url)
    prefix = f"{path.rpartition('/')[0] if fs.isfile(path) else path.rstrip('/')}/"
    for number, file in enumerate(files := fs.find(path), start=1):
        target = out.path / file.removeprefix(prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        fs.get_file(file, str(target))
        out.progress(number, len(files))
    return {"files": len(files)}
