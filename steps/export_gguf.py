"""``export_gguf``: a model as one file, as llama.cpp, Ollama and LM Studio run it."""

from pipeline import Metrics, Output, TemperError, step
from steps.export.config import GgufType
from steps.kinds import GgufModel, Model


@step(makes=GgufModel)
def export_gguf(
    out: Output, model: Model, type: GgufType = GgufType.q8_0, title: str = "model"
) -> Metrics:
    """Write ``TITLE-TYPE.gguf``: weights, tokenizer and chat template.

    Models of the types llama, mistral, qwen2 and qwen3 can be written, with a byte-level BPE.
    """
    from steps.export.gguf_file import file_name, write_gguf

    file = out.path / file_name(title, type)
    try:
        write_gguf(model.path, file, type, title)
    except ValueError as error:
        raise TemperError(str(error)) from error
    return {"bytes": file.stat().st_size, "type": str(type)}
