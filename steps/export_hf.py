"""``export_hf``: write a folder to publish: weights, tokenizer and a model card."""

import json
from typing import Any

from pipeline import Artifact, Metrics, Output, TemperError, step
from steps.data.rows.jsonl import read_json_lines
from steps.export.card import Ancestor, ModelCard, Sample, render_card
from steps.export.config import Adapters
from steps.kinds import Evaluation, Model
from steps.models.config import Dtype

CURVES = "training_curves.png"


@step(
    makes=Model,
    estimate="steps.step_needs:writes_model",
    added={"before": None, "base": None, "data": None, "adapters": Adapters.merged},
)
def export_hf(
    out: Output,
    model: Model,
    evaluation: Evaluation,
    card: ModelCard,
    dtype: Dtype = Dtype.float32,
    before: Evaluation | None = None,
    base: Model | None = None,
    data: Artifact | None = None,
    adapters: Adapters = Adapters.kept,
) -> Metrics:
    """Write a Hugging Face folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load.

    Args:
        evaluation: the evaluation of ``model``, for the card.
        before: the evaluation of the model that ``model`` was trained from, for the card.
        base: the original pretrained model, for the card's lineage. Adapters alone need it: it must
            be the model that they were trained on.
        data: the training data, for the card's lineage.
        adapters: whether adapters are merged, also kept, or written alone.

    Raises:
        TemperError: there are no adapters to write alone, or ``base`` is missing or is not theirs.
    """
    from steps.export.published_folder import export_adapters, export_merged
    from steps.export.training_curves import draw_curves
    from steps.export.versions import made_with

    named = {
        "base model": base,
        "training data": data,
        "this model": model,
        "evaluation": evaluation,
    }
    lineage = [Ancestor(role, a.step, a.digest) for role, a in named.items() if a is not None]
    alone = adapters is Adapters.alone
    try:
        if not alone:
            metrics = export_merged(model.path, out.path, dtype, adapters is Adapters.kept)
        elif base is not None:
            metrics = export_adapters(model.path, out.path, base.path, card.base_model)
        else:
            raise TemperError("adapters=alone needs base=, the model that they were trained on")
    except (FileNotFoundError, ValueError) as error:
        raise TemperError(str(error)) from error
    text = render_card(
        card,
        _metrics(evaluation),
        _metrics(before),
        lineage,
        _samples(evaluation, before),
        CURVES if draw_curves(model.path, out.path / CURVES) else None,
        made_with(),
        alone,
    )
    (out.path / "README.md").write_text(text, encoding="utf-8")
    return metrics


def _metrics(of: Evaluation | None) -> dict[str, Any]:
    return {} if of is None else json.loads((of / "metrics.json").read_text("utf-8"))


def _samples(evaluation: Evaluation, before: Evaluation | None) -> list[Sample]:
    earlier = [] if before is None else read_json_lines(before / "answers.jsonl")
    answers = {answer["row"]: answer["answer"] for answer in earlier}
    return [
        Sample(answer["prompt"], answers.get(answer["row"]), answer["answer"])
        for answer in read_json_lines(evaluation / "answers.jsonl")
    ]
