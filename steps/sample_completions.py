"""``sample_completions``: what a model answers to prompts."""

import json

from pipeline import Artifact, Metrics, Output, step
from steps.generation.config import SamplingConfig
from steps.training.config import Dtype


@step(version="1")
def sample_completions(
    out: Output,
    prompts: Artifact,
    model: Artifact,
    config: SamplingConfig = SamplingConfig(),
    dtype: Dtype = Dtype.float32,
) -> Metrics:
    """Write ``completions.jsonl``: each line of ``prompts.jsonl`` with its ``completions``."""
    from steps.data.templating import load_tokenizer
    from steps.generation.sampling import sample
    from steps.training.models import load_model

    records = [json.loads(line) for line in (prompts / "prompts.jsonl").open(encoding="utf-8")]
    texts = sample(
        load_model(model.path, dtype),
        load_tokenizer(model.path),
        [record["prompt"] for record in records],
        config,
        out.progress,
    )
    lines = (
        json.dumps({**record, "completions": completions}) + "\n"
        for record, completions in zip(records, texts, strict=True)
    )
    (out.path / "completions.jsonl").write_text("".join(lines), encoding="utf-8")
    return {"prompts": len(records), "completions": sum(map(len, texts))}
