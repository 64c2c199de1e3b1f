"""How long a sequence a model was made for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from steps.training.examples import TokenGroup


def longest_sequence(group: TokenGroup) -> int:
    """How many tokens a model reads of the longest sequence of a group."""
    return len(group.prompt_ids) + max(response.num_fed for response in group.responses)


def require_positions(model: PreTrainedModel, groups: Sequence[TokenGroup]) -> None:
    """Raises ValueError naming a row that a table of positions is too short for. A rotation goes on
    for ever."""
    if not any(rotations(model)) and (fault := _beyond(model, groups)):
        raise ValueError(fault)


def beyond_training(model: PreTrainedModel, groups: Sequence[TokenGroup]) -> str | None:
    """What a person should know if positions are rotated further than the model ever saw them.

    Not of "dynamic" rotations, which are meant to go beyond.
    """
    kinds = {rotation.get("rope_type") for rotation in rotations(model)}
    return _beyond(model, groups) if kinds and "dynamic" not in kinds else None


def rotations(model: PreTrainedModel) -> Iterator[Mapping[str, Any]]:
    """How positions are rotated, in the words of the model's config: for each kind of layer, or
    once for all; nothing for a model that does not."""
    settings = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    found = [value for value in settings.values() if isinstance(value, dict)]
    yield from found or ([settings] if settings else [])


def _beyond(model: PreTrainedModel, groups: Sequence[TokenGroup]) -> str | None:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    group = max(groups, key=longest_sequence)
    if positions is None or positions <= 0 or longest_sequence(group) <= positions:
        return None
    return (
        f"row {group.row!r} has {longest_sequence(group)} tokens to read, but "
        f"{type(model).__name__} is made for {positions}; tokenise with max_length={positions}"
    )
