"""``sample_completions``: what a model answers to prompts."""

from pipeline import Metrics, Output, step
from steps.data.jsonl import write_json_lines
from steps.data.parquet import read_rows
from steps.data.rows import PromptRow
from steps.data.tables import from_record
from steps.generation.config import SamplingConfig
from steps.kinds import Completions, Model, Prompts
from steps.training.config import Dtype


@step(makes=Completions)
def sample_completions(
    out: Output,
    prompts: Prompts,
    model: Model,
    config: SamplingConfig = SamplingConfig(),
    dtype: Dtype = Dtype.float32,
) -> Metrics:
    """Write ``completions.jsonl``: each of the prompts with its ``completions``."""
    from steps.data.rendering import load_tokenizer
    from steps.generation.sampling import sample
    from steps.training.models import load_model

    rows = [from_record(PromptRow, record) for record in read_rows(prompts.path)]
    texts = sample(
        load_model(model.path, dtype),
        load_tokenizer(model.path),
        [row.prompt for row in rows],
        config,
        out.progress,
    )
    completed = (
        {"row": row.row, "prompt": row.prompt, "answer": row.answer, "completions": completions}
        for row, completions in zip(rows, texts, strict=True)
    )
    write_json_lines(out.path / "completions.jsonl", completed)
    return {"prompts": len(rows), "completions": sum(map(len, texts))}
