"""Checks of sequence lengths against the positions that a model supports."""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedModel

from steps.shared.execution_detail import execution_detail


def require_positions(model: PreTrainedModel, row: str, tokens: int) -> None:
    """Raise ValueError, which names the `row`, if its longest sequence has more `tokens` than the
    model's table of positions. Rotary positions have no such limit."""
    if not any(rotations(model)) and (fault := _beyond(model, row, tokens)):
        raise ValueError(fault)


@execution_detail
def beyond_training(model: PreTrainedModel, row: str, tokens: int) -> str | None:
    """A notice if a sequence is longer than the rotary positions on which the model was trained.

    There is no notice for "dynamic" rotations, which are designed to go further.
    """
    kinds = {rotation.get("rope_type") for rotation in rotations(model)}
    return _beyond(model, row, tokens) if kinds and "dynamic" not in kinds else None


def rotations(model: PreTrainedModel) -> Iterator[Mapping[str, Any]]:
    """The settings of rotary positions in the model's config, one for each kind of layer or one for
    all; none for a model without rotary positions."""
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
