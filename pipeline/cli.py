"""``temper``: look into a store from the shell.

An artifact is named ``STEP`` (the newest one of that step) or ``STEP@KEY`` (a prefix of its key).
"""

import json
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from pipeline.board import make_console, show_error
from pipeline.errors import TemperError
from pipeline.manifest import Manifest
from pipeline.store import Store

app = typer.Typer(
    help="Look into a Temper store.", no_args_is_help=True, pretty_exceptions_enable=False
)
StoreOption = Annotated[
    str, typer.Option("--store", envvar="TEMPER_STORE", help="Local path or fsspec URL.")
]
Name = Annotated[str, typer.Argument(metavar="STEP[@KEY]", help="The newest of a step, or by key.")]


@app.command("list")
def list_artifacts(store: StoreOption = "store") -> None:
    """Every artifact in the store, oldest first."""
    manifests = Store(store).manifests()
    if not manifests:
        raise TemperError(f"there are no artifacts in {store}; set --store or TEMPER_STORE")
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for heading in ("artifact", "made", "seconds", "files", "size"):
        table.add_column(heading, justify="left" if heading in ("artifact", "made") else "right")
    for manifest in manifests:
        size = sum(entry.size for entry in manifest.files.values())
        table.add_row(
            Text(f"{manifest.step}@{manifest.key[:8]}"),
            manifest.attempt[:15],
            f"{manifest.seconds:.1f}",
            str(len(manifest.files)),
            decimal(size),
        )
    make_console().print(table)


@app.command()
def show(artifact: Name, store: StoreOption = "store") -> None:
    """Print an artifact's manifest: recipe, inputs, files, metrics, provenance."""
    make_console().print_json(json.dumps(json.loads(_find(Store(store), artifact).to_json())))


@app.command()
def path(artifact: Name, store: StoreOption = "store") -> None:
    """Print where an artifact's files lie."""
    opened = Store(store)
    typer.echo(opened.url_of(opened.content_path(_find(opened, artifact))))


@app.command()
def logs(artifact: Name, store: StoreOption = "store") -> None:
    """Print the log of the attempt that made an artifact."""
    opened = Store(store)
    path = f"{opened.attempt_path(_find(opened, artifact))}/log.txt"
    data = opened.read(path)
    if data is None:
        raise TemperError(f"there is no log at {opened.url_of(path)}")
    typer.echo(data.decode(errors="replace"), nl=False)


def _find(store: Store, name: str) -> Manifest:
    step, _, key = name.partition("@")
    found = [m for m in store.manifests([step]) if m.key.startswith(key)]
    if found:
        return found[-1]
    if step in store.steps():
        raise TemperError(
            f"no artifact of {step} has a key that begins with {key}; see: temper list"
        )
    known = ", ".join(store.steps()) or "nothing yet"
    raise TemperError(f"the store {store.url} has no artifact of {step!r}; it has: {known}")


def main() -> None:
    """Console script: errors as one line, as everywhere."""
    try:
        app()
    except TemperError as error:
        show_error(str(error))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
