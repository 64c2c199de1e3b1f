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


def turns_by_length(model: PreTrainedModel) -> bool:
    """Whether the rotation angles of a position may depend on the length of the sequence."""
    return any(rotation.get("rope_type") in BY_LENGTH for rotation in rotations(model))


BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotations whose angles change where a sequence exceeds some length."""


def forget_lengths(model: PreTrainedModel) -> None:
    """Set "dynamic" rotations back to their angles of short sequences.

    Such a rotation keeps the angles of the longest sequence that the model has read so far. Without
    this call, the output for a sequence would depend on what the model has read before it.
    """
    if all(rotation.get("rope_type") != "dynamic" for rotation in rotations(model)):
        return
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        layers: Mapping[str, str] = kinds if isinstance(kinds, dict) else {"": f"{kinds}"}
        for layer, kind in layers.items():
            if "dynamic" in kind:
                _forget_length(module, f"{layer}_" if layer else "")


def _forget_length(module: Any, prefix: str) -> None:
    angles = getattr(module, f"{prefix}inv_freq")
    setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").to(angles))
    setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def _beyond(model: PreTrainedModel, row: str, tokens: int) -> str | None:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is None or positions <= 0 or tokens <= positions:
        return None
    return (
        f"row {row!r} has {tokens} tokens to read, but {type(model).__name__} is made for "
        f"{positions}; tokenise with max_length={positions}, or sample with max_prompt_length and "
        "max_new_tokens of as many together"
    )
