"""The tokens that a step reads, if its model knows them, and the template that wrote them."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import Artifact, Metrics
from steps.data.vocabularies import hand_template_on, require_tokens_of

if TYPE_CHECKING:
    from steps.models.workplace import Workplace


def tokens_for(model: Artifact, tokens: Artifact) -> Path:
    """The folder of ``tokens``.

    Raises:
        ValueError: another tokenizer than that of ``model`` made them, and ids that occur mean
            something else to the model.
    """
    require_tokens_of(model.path, tokens.path)
    return tokens.path


def with_template_of(tokens: Artifact, place: "Workplace", metrics: Metrics) -> Metrics:
    """The metrics of a training run, once its model has the chat template that wrote ``tokens``: by
    another, it would be asked in ways that it was not trained on. A notice tells of a change."""
    if not place.ranks.is_first or not hand_template_on(tokens.path, place.output):
        return metrics
    told = (
        "the trained model has the chat template that wrote its tokens; that of the model from "
        "which training started is another"
    )
    return {**metrics, "notices": [*metrics.get("notices", ()), told]}
