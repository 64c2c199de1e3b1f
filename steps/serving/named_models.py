"""Find a model by name, as a folder on this machine.

A name is a folder, or an artifact's name as in ``temper path``: ``STEP``, ``STEP@KEY`` or
``EXPERIMENT/RESULT``. For an artifact, this module also finds the model from which its training
started.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from pipeline import Store, TemperError
from pipeline.dag.files import FileEntry, describe
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.names.naming import find, require_unmarked
from pipeline.store.wholes import whole_content
from steps.kinds import Model
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
_OTHER_FORMS = (
    " (a GGUF file runs in llama.cpp or Ollama; adapters alone must be merged into their base)"
)


@dataclass(frozen=True)
class NamedModel:
    """A model folder on this machine.

    Attributes:
        name: the name to show.
        before: ``STEP@KEY`` of the model from which its training started, if that is known.
        committed: the files of an artifact with their manifest entries; None for a plain folder,
            and for what was put together from several artifacts, whose files were checked then.
    """

    name: str
    folder: Path
    before: str | None = None
    committed: Mapping[Path, FileEntry] | None = None

    def require_committed(self, files: Iterable[Path]) -> None:
        """Raise TemperError, which names the file, if one of an artifact has changed since the
        commit."""
        if (committed := self.committed) is None:
            return
        for path in files:
            if committed.get(path) != describe(path):
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
        TemperError: the folder or artifact does not exist, its data is missing, it is not a
            model, or a file of a whole model is missing or cut off.
    """
    if Path(name).is_dir():
        yield NamedModel(name, _intact(name, _model_within(name, Path(name), forms), forms))
        return
    if name.startswith(("/", "./", "../", "~")) or Path(name).is_file():
        raise TemperError(f"there is no folder {name}{_OTHER_FORMS}")
    catalog = Catalog(Store(store))
    try:
        manifest = find(catalog, name)
    except TemperError as error:
        raise TemperError(
            f"{error}; and there is no folder {name} here (a model of the Hub must be downloaded "
            "first: hf download OWNER/NAME --local-dir DIR)"
        ) from None
    require_unmarked(catalog, manifest)
    if lost := catalog.store.lost_files(manifest):
        raise TemperError(f"{manifest.name} has lost {lost[0]}; see: temper verify {manifest.step}")
    content = catalog.store.content_path(manifest)
    with TemporaryDirectory(prefix="temper-model-") as copy:
        folder = Path(content)
        if not catalog.store.is_local:
            catalog.store.objects.download(content, folder := Path(copy))
        shown = manifest.name if "@" in name else name  # with a short key in place of a full one
        committed = {folder / file: entry for file, entry in manifest.files.items()}
        model = _model_within(name, folder, forms)
        before, part = _before(catalog, manifest), None if model == folder else model.name
        with whole_content(catalog, manifest, part, Model, model) as whole:
            known = committed if whole == model else None
            yield NamedModel(shown, _intact(name, whole, forms), before, known)


def _model_within(name: str, folder: Path, forms: Sequence[str]) -> Path:
    """The folder itself, or its subfolder ``model``, which online training writes."""
    for candidate in (folder, folder / "model"):
        if any(found.is_file() for form in forms for found in candidate.glob(form)):
            return candidate
    raise TemperError(f"{name} is no model: it has no {' or '.join(forms)}{_OTHER_FORMS}")


def _intact(name: str, model: Path, forms: Sequence[str]) -> Path:
    if forms == (WHOLE,) and (fault := fault_of(model, trains=False)):
        raise TemperError(
            f"{name} cannot be used: it {fault}; copy its files again from the model it was made "
            "from"
        )
    return model


def _before(catalog: Catalog, manifest: Manifest) -> str | None:
    """The model from which the training of this one started, as ``STEP@KEY``."""
    recipe: Any = manifest.recipe
    inputs = {entry.digest: entry for entry in manifest.inputs}
    for argument in (_COPIED, *_STARTED_FROM):
        match recipe.get("arguments", {}).get(argument):
            case {"$input": digest} if (found := inputs.get(digest)) is not None:
                if argument in _STARTED_FROM:
                    return f"{found.step}@{found.key}"
                copied = catalog.latest(found.step, found.key)
                return None if copied is None else _before(catalog, copied)
    return None
