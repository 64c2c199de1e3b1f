"""The tokens that a step reads, if its model knows them, and the template that wrote them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def demonstrations_for(model: Artifact, tokens: Artifact) -> Iterator[Mapping[str, Any]]:
    """The records of ``tokens`` for ``model`` to imitate: conversations as they are, and of
    preference pairs the chosen responses. Raises ValueError as :func:`tokens_for` does."""
    from steps.data.images.images_of_rows import rows_with_images
    from steps.scoring.examples import chosen_as_demonstration

    rows = rows_with_images(tokens_for(model, tokens))
    return (chosen_as_demonstration(row) if "chosen_ids" in row else row for row in rows)


def with_template_of(tokens: Artifact, place: "Workplace", metrics: Metrics) -> Metrics:
    """The metrics of a training run, once its model has the chat template that wrote ``tokens``: by
    another, it would be asked in ways that it was not trained on. A notice tells of a change."""
    folders = [place.output, *sorted(place.output.glob("step-*"))] if place.ranks.is_first else []
    changed = [hand_template_on(tokens.path, folder) for folder in folders]
    if not any(changed):
        return metrics
    told = (
        "the trained model has the chat template that wrote its tokens; that of the model from "
        "which training started is another"
    )
    return {**metrics, "notices": [*metrics.get("notices", ()), told]}
