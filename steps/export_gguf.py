"""``export_gguf``: write a model as one file for llama.cpp, Ollama and LM Studio."""

from pipeline import Metrics, Output, TemperError, step
from steps.export.config import GgufType
from steps.kinds import GgufModel, Model


@step(makes=GgufModel, estimate="steps.prices.of_models:EXPORTED_GGUF")
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
        raise TemperError(f"{error}; leave this step out (export_gguf=null)") from error
    return {"bytes": file.stat().st_size, "type": str(type)}
