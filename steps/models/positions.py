"""How long a sequence a model was made for."""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedModel

from steps.shared.execution_detail import execution_detail


def require_positions(model: PreTrainedModel, row: str, tokens: int) -> None:
    """Raises ValueError naming the row whose longest sequence has so many `tokens` to read, if a
    table of positions is too short for it. A rotation goes on for ever."""
    if not any(rotations(model)) and (fault := _beyond(model, row, tokens)):
        raise ValueError(fault)


@execution_detail
def beyond_training(model: PreTrainedModel, row: str, tokens: int) -> str | None:
    """What a person should know if positions are rotated further than the model ever saw them.

    Not of "dynamic" rotations, which are meant to go beyond.
    """
    kinds = {rotation.get("rope_type") for rotation in rotations(model)}
    return _beyond(model, row, tokens) if kinds and "dynamic" not in kinds else None


def rotations(model: PreTrainedModel) -> Iterator[Mapping[str, Any]]:
    """How positions are rotated, in the words of the model's config: for each kind of layer, or
    once for all; nothing for a model that does not."""
    settings = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    found = [value for value in settings.values() if isinstance(value, dict)]
    yield from found or ([settings] if settings else [])


def _beyond(model: PreTrainedModel, row: str, tokens: int) -> str | None:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is None or positions <= 0 or tokens <= positions:
        return None
    return (
        f"row {row!r} has {tokens} tokens to read, but {type(model).__name__} is made for "
        f"{positions}; tokenise with max_length={positions}"
    )
