"""``export_gguf``: write a model as one file for llama.cpp, Ollama and LM Studio."""

from pathlib import Path

from pipeline import File, Metrics, Output, Step, TemperError, step
from steps.export.config import GgufType
from steps.kinds import GgufModel, Model

_INSTEAD = "leave this step out (export_gguf=null)"


@step(
    makes=GgufModel,
    estimate="steps.prices.of_models:EXPORTED_GGUF",
    refuses="steps.export_gguf:refuse_unwritable",
)
def export_gguf(
    out: Output, model: Model, type: GgufType = GgufType.q8_0, title: str = "model"
) -> Metrics:
    """Write ``TITLE-TYPE.gguf``: weights, tokenizer and chat template.

    The model must be a llama, mistral, qwen2 or qwen3 whose tokenizer is a byte-level BPE.
    """
    from steps.export.gguf_file import file_name, write_gguf

    file = out.path / file_name(title, type)
    try:
        write_gguf(model.path, file, type, title)
    except ValueError as error:
        raise TemperError(f"{error}; {_INSTEAD}") from error
    return {"bytes": file.stat().st_size, "type": str(type)}


def refuse_unwritable(model: Step, **_: object) -> None:
    """Refuse, when a plan is made, a model that began as a local folder which GGUF cannot hold. It
    takes the arguments of ``export_gguf``.

    Raises:
        TemperError: the type of the model, or the kind of its tokenizer, cannot be written.
    """
    from steps.export.gguf_kinds import require_writable

    for folder in _imported_by(model):
        try:
            require_writable(folder)
        except ValueError as error:
            raise TemperError(f"{folder}: {error}; {_INSTEAD}") from error


def _imported_by(step: Step) -> set[Path]:
    """The local folders from which the models that a step is made of were imported."""
    source = step.arguments.get("source") if step.name == "import_model" else None
    if isinstance(source, File) and (folder := Path(source.url)).is_dir():
        return {folder}
    return {folder for reference in step.inputs for folder in _imported_by(reference.step)}
