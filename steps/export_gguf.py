"""``export_gguf``: write a model as one file for llama.cpp, Ollama and LM Studio."""

from pathlib import Path

from pipeline import File, Metrics, Output, TemperError, step
from steps.export.config import GgufType
from steps.kinds import GgufModel, Model

_INSTEAD = "leave this step out (export_gguf=null)"


@step(
    makes=GgufModel,
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


def refuse_unwritable(model: object, **_: object) -> None:
    """Refuse, when a plan is made, a model that began as a local folder which GGUF cannot hold. It
    takes the arguments of ``export_gguf``.

    Raises:
        TemperError: the type of the model, or the kind of its tokenizer, cannot be written.
    """
    from pipeline.dag.step import as_input
    from pipeline.plan.planning import topological
    from steps.export.gguf_kinds import require_writable

    made = as_input(model)
    for needed in topological([] if made is None else [made.step]):
        source = needed.arguments.get("source") if needed.name == "import_model" else None
        if isinstance(source, File) and (folder := Path(source.url)).is_dir():
            try:
                require_writable(folder)
            except ValueError as error:
                raise TemperError(f"{folder}: {error}; {_INSTEAD}") from error
