"""Find a model by name, as a folder on this machine.

A name is a folder, or an artifact's name as in ``temper path``: ``STEP``, ``STEP@KEY`` or
``EXPERIMENT/RESULT``. For an artifact, this module also finds the model from which its training
started.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from pipeline import Store, TemperError
from pipeline.cli.naming import find, require_unmarked
from pipeline.dag.files import FileEntry, describe
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from steps.models.folder_check import fault_of

ModelName = Annotated[
    str,
    typer.Argument(metavar="NAME|DIR", help="EXPERIMENT/RESULT, STEP[@KEY], or a model folder."),
]
StoreUrl = Annotated[str, typer.Option("--store", envvar="TEMPER_STORE", help="The store of NAME.")]

WHOLE, ADAPTERS, GGUF = "config.json", "adapter_config.json", "*.gguf"
"""The files that identify a folder with a whole model, with adapters only, or with a GGUF file."""

_COPIED = "model"
"""The model argument of steps that write the same model in another form, like ``export_hf``."""
_STARTED_FROM = ("policy", "init")
"""The arguments of training steps with the model from which training starts."""


@dataclass(frozen=True)
class NamedModel:
    """A model folder on this machine.

    Attributes:
        name: the name to show.
        is_artifact: whether the model is an artifact of a store.
        before: ``STEP@KEY`` of the model from which its training started, if that is known.
        committed: the files of an artifact with their manifest entries; empty for a plain folder.
    """

    name: str
    folder: Path
    is_artifact: bool = False
    before: str | None = None
    committed: Mapping[Path, FileEntry] = field(default_factory=dict)

    def require_whole(self) -> None:
        """Check that files for text in and text out are there, and none is cut off.

        Raises:
            TemperError: the message names what is missing or damaged.
        """
        if fault := fault_of(self.folder, trains=False):
            raise TemperError(
                f"{self.name} cannot be used: it {fault}; copy its files again from the model it "
                "was made from"
            )

    def require_committed(self, files: Iterable[Path]) -> None:
        """Check that the files of an artifact have not changed since the commit.

        Raises:
            TemperError: a file has changed; the message names the first one.
        """
        for path in files if self.is_artifact else ():
            if self.committed.get(path) != describe(path):
                raise TemperError(
                    f"{path} is not what {self.name} was made with; see what is: temper verify"
                )


@contextmanager
def told_as_errors() -> Iterator[None]:
    """Turn a ValueError of the libraries into an error message of the command line."""
    try:
        yield
    except ValueError as error:
        raise TemperError(str(error)) from error


@contextmanager
def opened(name: str, store: str, forms: Sequence[str] = (WHOLE,)) -> Iterator[NamedModel]:
    """The model with this name. An artifact in a remote store is copied to this machine while the
    block runs.

    Args:
        forms: patterns of files; the folder must contain a file that matches one of them.

    Raises:
        TemperError: the folder or artifact does not exist, its data is missing, or it is not a
            model.
    """
    if Path(name).is_dir():
        yield NamedModel(name, _model_within(name, Path(name), forms))
        return
    if Path(name).is_file():
        if Path(name).match(GGUF):
            raise TemperError(
                f"{name} is a GGUF file; run it with llama.cpp or Ollama, or name the folder from "
                "which it was made"
            )
        raise TemperError(f"{name} is a file; name a model's folder, or a result of a run")
    if name.startswith(("/", "./", "../", "~")):
        raise TemperError(f"there is no folder {name}")
    catalog = Catalog(Store(store))
    try:
        manifest = find(catalog, name)
    except TemperError as error:
        raise TemperError(
            f"{error}; and there is no folder {name} here (a model of the Hub must be downloaded "
            "first: hf download OWNER/NAME --local-dir DIR)"
        ) from None
    _require_data(catalog, manifest)
    content = catalog.store.content_path(manifest)
    with TemporaryDirectory(prefix="temper-model-") as copy:
        folder = Path(content)
        if not catalog.store.is_local:
            catalog.store.objects.download(content, folder := Path(copy))
        model = _model_within(name, folder, forms)
        shown = manifest.name if "@" in name else name  # with a short key in place of a full one
        committed = {folder / file: entry for file, entry in manifest.files.items()}
        yield NamedModel(shown, model, True, _before(catalog, manifest), committed)


def _model_within(name: str, folder: Path, forms: Sequence[str]) -> Path:
    """The folder itself, or its subfolder ``model``, which online training writes.

    Raises:
        TemperError: neither contains a model in one of these forms.
    """
    for candidate in (folder, folder / "model"):
        if any(found.is_file() for form in forms for found in candidate.glob(form)):
            return candidate
    if (folder / ADAPTERS).is_file():
        raise TemperError(
            f"{name} holds adapters without their base; name the folder above it, in which they "
            "are merged, or merge them with peft first"
        )
    if any(folder.glob(GGUF)):
        raise TemperError(f"{name} holds a GGUF file; run it with llama.cpp or Ollama")
    raise TemperError(f"{name} is no model: it has no {' or '.join(forms)}")


def _require_data(catalog: Catalog, manifest: Manifest) -> None:
    require_unmarked(catalog, manifest)
    if lost := catalog.store.lost_files(manifest):
        raise TemperError(f"{manifest.name} has lost {lost[0]}; see: temper verify {manifest.step}")


def _before(catalog: Catalog, manifest: Manifest) -> str | None:
    """The model from which the training of this one started, as ``STEP@KEY``."""
    while (copied := _argument(catalog, manifest, _COPIED)) is not None:
        manifest = copied
    for argument in _STARTED_FROM:
        if (found := _argument(catalog, manifest, argument)) is not None:
            return f"{found.step}@{found.key}"
    return None


def _argument(catalog: Catalog, manifest: Manifest, name: str) -> Manifest | None:
    """The artifact that was an argument of a step."""
    recipe: Any = manifest.recipe
    given = recipe.get("arguments", {}).get(name)
    digest = given.get("$input") if isinstance(given, dict) else None
    for entry in manifest.inputs:
        if entry.digest == digest:
            return catalog.latest(entry.step, entry.key)
    return None
