"""Writes the placeholder tokens of a processor in place of each image.

Their number depends only on the processor and on the image's size. So the processor is called once
for each size, with a blank image. The scoring of a model checks that the real image yields as many
features as it has placeholders.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from steps.data.rows.reasons import MalformedRow
from steps.shared.execution_detail import execution_detail

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
_OF_IMAGES = ("image_processor", "image_processor_type")

Span = tuple[int, int]


def reads_images(folder: Path) -> bool:
    """Whether a model folder has an image processor."""
    for name in PROCESSOR_FILES:
        if (folder / name).is_file():
            config = json.loads((folder / name).read_text("utf-8"))
            if any(key in config for key in _OF_IMAGES):
                return True
    return False


def load_processor(folder: Path) -> Any:
    """The processor of a model folder. Pillow resizes the images if the processor supports that,
    so that the pixels do not depend on whether torchvision is installed.

    Raises:
        ValueError: the processor cannot be loaded, or has no placeholder for images.
    """
    from transformers import AutoImageProcessor, AutoProcessor

    given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        processor: Any = AutoProcessor.from_pretrained(str(folder), **given)
        processor.image_processor = AutoImageProcessor.from_pretrained(
            str(folder), **given, backend="pil"
        )
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(_unloadable(folder, error)) from error
    if getattr(processor, "image_token", None) is None:
        raise ValueError(
            f"{folder}: {type(processor).__name__} has no image_token; name a model whose "
            "processor has one, such as Idefics3 or SmolVLM"
        )
    return processor


@execution_detail
def _unloadable(folder: Path, error: Exception) -> str:
    said = " ".join(str(error).split())[:300]
    return f"the processor of {folder} cannot be loaded: {said}; are its files whole?"


class Placeholders:
    """Replaces the marks of images in a rendered text by the placeholders of a processor.

    If the processor cannot be loaded (one for videos needs more packages), rows without images
    still work.
    """

    def __init__(self, folder: Path) -> None:
        self.mark, self.token_id, self._fault = "", -1, ""
        self._of_size = cache(self._ask)
        try:
            self.processor = load_processor(folder)
        except ValueError as error:
            self._fault = str(error)
            return
        self.mark = str(self.processor.image_token)
        self.token_id = int(self.processor.tokenizer.convert_tokens_to_ids(self.mark))

    def expanded(
        self, text: str, spans: Sequence[Span], sizes: Sequence[tuple[int, int]]
    ) -> tuple[str, tuple[Span, ...]]:
        """A rendered text with the placeholders of its images, and its spans in that new text.

        Args:
            sizes: width and height of each image, in order, in pixels.

        Raises:
            MalformedRow: the text marks fewer or more images than there are, or one in a span.
        """
        if self._fault:
            if sizes:
                raise MalformedRow("template refuses the conversation", self._fault)
            return text, tuple(spans)
        pieces = text.split(self.mark)
        if len(pieces) != len(sizes) + 1:
            raise MalformedRow(
                "images not matched",
                f"the row has {len(sizes)} images, but its rendered text has {self.mark} "
                f"{len(pieces) - 1} times: the template drops images, or a message contains it",
            )
        if any(self.mark in text[start:stop] for start, stop in spans):
            raise MalformedRow("images not matched", "an image lies in a text that is trained on")
        written, added, moved = pieces[0], [(-1, 0)], 0
        for piece, size in zip(pieces[1:], sizes, strict=True):
            place, own = len(written) - moved, self._of_size(size)
            moved += len(own) - len(self.mark)
            added.append((place, moved))
            written += own + piece
        return written, tuple((_moved(start, added), _moved(stop, added)) for start, stop in spans)

    def _ask(self, size: tuple[int, int]) -> str:
        from PIL import Image

        try:
            made = self.processor(
                text=[self.mark],
                images=[[Image.new("RGB", size)]],
                return_text_replacement_offsets=True,
            )
            return made["text_replacement_offsets"][0][0]["replacement"]
        except Exception as error:  # processors refuse sizes with errors of many types
            said = " ".join(str(error).split())[:200]
            raise MalformedRow(
                "broken image",
                f"the processor takes no image of {size[0]} x {size[1]} pixels: "
                f"{type(error).__name__}: {said}",
            ) from None


def _moved(character: int, added: Sequence[tuple[int, int]]) -> int:
    """The new index of a character, after the additions before it."""
    return character + next(moved for place, moved in reversed(added) if place < character)
