"""Returns rows of tokens together with their images."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.data.images.image_table import IMAGES, ImageTable
from steps.data.images.pictures import pixels
from steps.data.rows.parquet import iter_rows

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ImageOfRow:
    """An image beside the rows of `folder`."""

    folder: Path
    sha256: str

    def pixels(self) -> "Image":
        """The image in RGB.

        Raises:
            ValueError: the image is missing or damaged.
        """
        return pixels(_table(self.folder).content(self.sha256))


_table = lru_cache(maxsize=8)(ImageTable)


def rows_with_images(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of token files; a row whose prompt has images also has the key `images`."""
    rows = iter_rows(folder)
    if not (folder / IMAGES).is_dir():
        return rows
    return (record | {"images": _of(folder, record)} for record in rows)


def _of(folder: Path, record: Mapping[str, Any]) -> tuple[ImageOfRow, ...]:
    return tuple(ImageOfRow(folder, image["sha256"]) for image in described_images(record))


def described_images(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The images of a record's prompt, in order: `sha256`, `width`, `height`."""
    extras = (message["extra"] for message in record.get("prompt") or ())
    return [image for extra in extras if extra for image in json.loads(extra).get("images", ())]
