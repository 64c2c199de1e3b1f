"""Prints one row of an artifact.

The core does not know the content of rows. A kind may name a *viewer*
(:class:`pipeline.dag.artifact.Artifact`), which is imported only when a row is printed.
"""

from collections.abc import Iterator

from rich.console import Console

from pipeline.base.errors import TemperError
from pipeline.cli.step_lookup import import_named, kind_in, project_with
from pipeline.dag.artifact import Artifact, Kind
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.names.naming import require_unmarked


def show_row(
    console: Console, catalog: Catalog, manifest: Manifest, row: str, split: str | None
) -> None:
    """Print one row of an artifact.

    Raises:
        TemperError: the data is missing, the kind has no viewer, or there is no such row.
    """
    require_unmarked(catalog, manifest)
    if lost := catalog.store.lost_files(manifest):
        raise TemperError(
            f"the data of {manifest.name} is damaged ({lost[0]} is not what it was); a run that "
            "asks for it makes it again"
        )
    kind = Artifact
    if manifest.kind is not None:
        kind = kind_in(project_with(catalog.store, manifest.step), manifest)
    if kind.viewer is None:
        viewable = ", ".join(sorted({k.__name__ for k in _kinds(Artifact) if k.viewer}))
        raise TemperError(
            f"{manifest.name} is of kind {kind.__name__}, of which no row can be shown; "
            f"kinds of which one can: {viewable or 'none'}"
        )
    view = import_named(kind.viewer)
    try:
        view(catalog.store.url_of(catalog.store.content_path(manifest)), row, split, console)
    except (LookupError, FileNotFoundError) as error:
        raise TemperError(f"{manifest.name}: {error}") from error


def _kinds(kind: Kind) -> Iterator[Kind]:
    for below in kind.__subclasses__():
        yield below
        yield from _kinds(below)
