"""Whole artifacts from those that rest on others; see :attr:`pipeline.dag.artifact.Artifact`.

An artifact that rests on another has only the digest of that one's content in its files. So its own
digest covers both, and it does not matter where or when the other one is made.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from pipeline.base.errors import TemperError
from pipeline.dag.artifact import Artifact, Kind
from pipeline.dag.canonical import resolve_reference
from pipeline.dag.files import describe
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest

Find = Callable[[str], Path]
"""From the digest of an artifact to its folder, which is whole."""


def whole(kind: Kind, folder: Path, find: Find, room: Path) -> Path:
    """`folder` itself if it is whole, or a new one in `room`, which is whole."""
    if kind.assemble is None:
        return folder
    target = Path(tempfile.mkdtemp(dir=room))
    return target if resolve_reference(kind.assemble)(folder, target, find) else folder


@contextlib.contextmanager
def whole_inputs(inputs: Sequence[Artifact], room: Path | None) -> Iterator[list[Artifact]]:
    """The inputs of a step, whole while the block runs: those on which others rest are among them.

    Args:
        room: an existing folder with room for large files; without it, a temporary one.

    Raises:
        TemperError: an input rests on an artifact that is not among them.
    """
    given = {artifact.digest: artifact for artifact in inputs}
    with tempfile.TemporaryDirectory(prefix="temper-input-", dir=room) as folder:

        @cache
        def find(digest: str) -> Path:
            if (artifact := given.get(digest)) is None:
                raise TemperError(
                    f"an input rests on the artifact {digest}, which this step was not given: "
                    "adopt() copies the files of one artifact; adopt a whole one"
                )
            return whole(type(artifact), artifact.path, find, Path(folder))

        yield [replace(artifact, path=find(artifact.digest)) for artifact in inputs]


def base_of(catalog: Catalog, made: Manifest, digest: str) -> tuple[Manifest, str | None]:
    """The artifact, and its part, of a digest on which an artifact of the store rests.

    Raises:
        TemperError: its data is gone.
    """
    for entry in made.inputs:
        if entry.digest != digest:
            continue
        for manifest in catalog.generations(entry.step, entry.key):
            same = manifest.digest_of(entry.part) == digest
            if same and not catalog.loss(manifest) and not catalog.store.lost_files(manifest):
                return manifest, entry.part
    raise TemperError(
        f"{made.name} rests on another artifact, whose data is gone; run its experiment again"
    )


@contextlib.contextmanager
def whole_content(
    catalog: Catalog, made: Manifest, part: str | None, kind: Kind, folder: Path | None = None
) -> Iterator[Path]:
    """The local folder of an artifact of the store, or of a part of it, of this kind: whole while
    the block runs. A copy is made of remote files, and of what rests on another artifact.

    Args:
        folder: a local folder with these files, if there is one.

    Raises:
        TemperError: what it rests on is gone, or one of the two is damaged.
    """
    with tempfile.TemporaryDirectory(prefix="temper-whole-") as temporary:
        room = Path(temporary)

        def local(manifest: Manifest, inside: str | None) -> Path:
            path = "/".join(filter(None, (catalog.store.content_path(manifest), inside)))
            if catalog.store.is_local:
                return Path(path)
            copy = Path(tempfile.mkdtemp(dir=room))
            catalog.store.objects.download(path, copy)
            return copy

        def assembled(at: Path, manifest: Manifest, inside: str | None) -> Path:
            def find(digest: str) -> Path:
                _require_committed(at, manifest, inside)
                base, of_base = base_of(catalog, manifest, digest)
                beneath = local(base, of_base)
                _require_committed(beneath, base, of_base)
                return assembled(beneath, base, of_base)

            return whole(kind, at, find, room)

        yield assembled(folder or local(made, part), made, part)


def _require_committed(folder: Path, made: Manifest, part: str | None) -> None:
    for name, entry in made.files_of(part).items():
        if not (folder / name).is_file() or describe(folder / name) != entry:
            raise TemperError(
                f"{name} of {made.name} is not what was committed; see: temper verify"
            )
