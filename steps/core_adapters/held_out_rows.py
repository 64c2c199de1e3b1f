"""The held-out examples of a training step, as the training library takes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import Artifact, TemperError
from steps.core_adapters.own_tokens import tokens_for
from steps.data.images.images_of_rows import rows_with_images


def with_reference(
    model: Artifact, held_out: Artifact | None, reference: Artifact | None
) -> tuple[Iterator[dict[str, Any]], Path] | None:
    """The rows and the folder of their reference; None if there are neither. ``model`` is to read
    the rows.

    Raises:
        TemperError: only one of the last two arguments is given.
    """
    if held_out is None and reference is None:
        return None
    if held_out is None or reference is None:
        missing = "held_out" if held_out is None else "held_out_reference"
        raise TemperError(
            f"{missing} is missing; held-out examples are evaluated with a reference of their own, "
            "so give both or neither"
        )
    return rows_with_images(tokens_for(model, held_out)), reference.path
