"""``check_export``: compare an exported model with its original, token by token."""

from importlib.util import find_spec

from pipeline import Metrics, Output, TemperError, step
from pipeline.base.extras import how_to_install
from steps.data.rows.jsonl import write_json_lines
from steps.export.config import ExportCheckConfig
from steps.kinds import ExportCheck, GgufModel, Model


@step(makes=ExportCheck)
def check_export(
    out: Output,
    model: Model,
    exported: Model | GgufModel,
    config: ExportCheckConfig = ExportCheckConfig(),
) -> Metrics:
    """Write ``README.md``, the export's card with its divergence from ``model``, and
    ``tokens.jsonl``, a record for each token.

    Returns ``kl_per_token`` and ``kl_max``, the mean and the largest KL(model‖exported) of the next
    token, in nats; ``same_first``, the share of tokens after which both find the same next token
    likeliest; ``same_tokens``, the share of texts that both tokenizers split alike.

    Args:
        exported: a folder for transformers, merged or quantised, or a GGUF file, which needs
            llama-cpp-python.

    Raises:
        TemperError: the export cannot be read, or has another vocabulary.
    """
    from steps.export.checked_export import card_with, compare

    if any(exported.path.glob("*.gguf")) and find_spec("llama_cpp") is None:
        remedy = how_to_install("llama-cpp-python")
        raise TemperError(f"to check a GGUF file, llama.cpp must be installed: {remedy}")
    try:
        metrics, records = compare(model.path, exported.path, config, out.progress)
    except ValueError as error:
        raise TemperError(f"{exported.step}: {error}") from error
    write_json_lines(out.path / "tokens.jsonl", records)
    card = exported.path / "README.md"
    text = card.read_text("utf-8") if card.is_file() else ""
    (out.path / "README.md").write_text(card_with(text, exported.step, metrics), "utf-8")
    return {**metrics}
