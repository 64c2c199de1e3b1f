"""``export_hf``: the folder to hand over: weights, tokenizer and a model card."""

import json

from pipeline import Metrics, Output, step
from steps.export.card import ModelCard, render_card
from steps.kinds import Evaluation, Model
from steps.training.config import Dtype


@step(makes=Model)
def export_hf(
    out: Output,
    model: Model,
    evaluation: Evaluation,
    card: ModelCard,
    dtype: Dtype = Dtype.float32,
) -> Metrics:
    """Write a Hugging Face folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load."""
    from steps.training.models import load_model, save_model

    results = json.loads((evaluation / "metrics.json").read_text("utf-8"))
    exported = load_model(model.path, dtype)
    save_model(exported, out.path, tokenizer_from=model.path)
    (out.path / "README.md").write_text(render_card(card, results), encoding="utf-8")
    return {"parameters": exported.num_parameters(), "dtype": str(dtype)}
