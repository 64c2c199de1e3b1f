"""``export_hf``: the folder to hand over: weights, tokenizer and a model card."""

import json
from typing import Any

from pipeline import Metrics, Output, step
from steps.export.card import Ancestor, ModelCard, render_card
from steps.kinds import Evaluation, Model
from steps.training.config import Dtype


@step(makes=Model, added={"before": None, "base": None})
def export_hf(
    out: Output,
    model: Model,
    evaluation: Evaluation,
    card: ModelCard,
    dtype: Dtype = Dtype.float32,
    before: Evaluation | None = None,
    base: Model | None = None,
) -> Metrics:
    """Write a Hugging Face folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load.

    Args:
        evaluation: of ``model``, for its card; ``before``: of the model it was trained from.
        base: the model that all began with, for the card's lineage.
    """
    from steps.training.models import load_model, save_model

    def metrics(of: Evaluation | None) -> dict[str, Any]:
        return {} if of is None else json.loads((of / "metrics.json").read_text("utf-8"))

    named = {"base model": base, "this model": model, "evaluation": evaluation}
    lineage = [Ancestor(role, a.step, a.digest) for role, a in named.items() if a is not None]
    exported = load_model(model.path, dtype)
    save_model(exported, out.path, tokenizer_from=model.path)
    text = render_card(card, metrics(evaluation), metrics(before), lineage)
    (out.path / "README.md").write_text(text, encoding="utf-8")
    return {"parameters": exported.num_parameters(), "dtype": str(dtype)}
