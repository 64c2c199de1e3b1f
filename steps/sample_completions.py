"""``sample_completions``: what a model answers to prompts."""

from pipeline import Metrics, Output, step
from steps.data.jsonl import read_json_lines, write_json_lines
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
    """Write ``completions.jsonl``: each line of ``prompts.jsonl`` with its ``completions``."""
    from steps.data.templating import load_tokenizer
    from steps.generation.sampling import sample
    from steps.training.models import load_model

    records = read_json_lines(prompts / "prompts.jsonl")
    texts = sample(
        load_model(model.path, dtype),
        load_tokenizer(model.path),
        [record["prompt"] for record in records],
        config,
        out.progress,
    )
    completed = (
        {**record, "completions": completions}
        for record, completions in zip(records, texts, strict=True)
    )
    write_json_lines(out.path / "completions.jsonl", completed)
    return {"prompts": len(records), "completions": sum(map(len, texts))}
