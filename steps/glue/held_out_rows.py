"""Held-out examples of a training step, as the machinery takes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import Artifact, TemperError
from steps.data.images.of_tokens import rows_with_images


def with_reference(
    held_out: Artifact | None, reference: Artifact | None
) -> tuple[Iterator[dict[str, Any]], Path] | None:
    """The rows and where their reference lies; neither may be given alone."""
    if held_out is None and reference is None:
        return None
    if held_out is None or reference is None:
        missing = "held_out" if held_out is None else "held_out_reference"
        raise TemperError(
            f"{missing} is missing; held-out examples are evaluated with a reference of their own, "
            "so give both or neither"
        )
    return rows_with_images(held_out.path), reference.path
