"""``import_model``: convert a pretrained model from any source to a Hugging Face folder, once."""

import tempfile
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline import File, HubModel, Metrics, Output, step
from steps.kinds import Model
from steps.models.config import Dtype, Published


@step(
    makes=Model,
    estimate="steps.step_needs:writes_model",
    refuses="steps.sources:refuse_no_model",
    added={"about": Published()},
)
def import_model(
    out: Output,
    source: File | HubModel,
    chat_template: File | None = None,
    dtype: Dtype = Dtype.float32,
    about: Published = Published(),
) -> Metrics:
    """Write safetensors, config and tokenizer files to the root of the output folder.

    A ``.gguf`` file is dequantised. ``chat_template`` replaces the tokenizer's own template.
    """
    from steps.models.importing import import_pretrained

    template = None
    if chat_template is not None:
        fs, path = fsspec.url_to_fs(chat_template.url)
        template = fs.cat_file(path).decode()
    if isinstance(source, HubModel):
        revision = source.revision
        metrics = import_pretrained(source.repo, out.path, dtype, template, revision=revision)
    else:
        with tempfile.TemporaryDirectory() as folder:
            local = _local_path(source.url, Path(folder))
            metrics = import_pretrained(str(local), out.path, dtype, template)
    told = {"source": about.name, "license": about.license} if about.name else {}
    return {**metrics, **told}


def _local_path(url: str, folder: Path) -> Path:
    """The path itself if it is local, else the path of a copy in ``folder``."""
    fs, path = fsspec.url_to_fs(url)
    if isinstance(fs, LocalFileSystem):
        return Path(path)
    target = folder / path.rstrip("/").rsplit("/", 1)[-1]
    fs.get(path, str(target), recursive=fs.isdir(path))
    return target
