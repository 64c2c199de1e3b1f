"""The tokens that stand for images: what a processor writes in place of each.

How many there are depends on the size of an image and on the processor alone, so an image of that
size without content is asked about, once for each size. That the model makes as many features of
the real one is looked at where it reads them.
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
    """Whether the model folder has a processor of images."""
    for name in PROCESSOR_FILES:
        if (folder / name).is_file():
            said = json.loads((folder / name).read_text("utf-8"))
            if any(key in said for key in _OF_IMAGES):
                return True
    return False


def load_processor(folder: Path) -> Any:
    """The processor of a model folder. Images are resized by Pillow, where the processor can, so
    that their pixels do not depend on whether torchvision is installed.

    Raises:
        ValueError: it cannot be loaded, or does not say what it writes for an image.
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
    """What the processor of a model folder writes for images.

    Where the processor cannot be loaded (one of videos wants more packages), rows without images
    are taken all the same.
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
        """A rendered text with the placeholders of its images, and its spans where they are then.

        Args:
            sizes: width and height of each image, in order.

        Raises:
            MalformedRow: the text has another number of images, or one within a span.
        """
        if self._fault:
            if sizes:
                raise MalformedRow("template refuses the conversation", self._fault)
            return text, tuple(spans)
        pieces = text.split(self.mark)
        if len(pieces) != len(sizes) + 1:
            raise MalformedRow(
                "images not matched",
                f"the row has {len(sizes)} images, and its rendered text {len(pieces) - 1} times "
                f"{self.mark}: the template leaves images out, or a text spells it",
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
        except Exception as error:  # of a size that it does not take, in whatever way it says so
            said = " ".join(str(error).split())[:200]
            raise MalformedRow(
                "broken image",
                f"the processor takes no image of {size[0]} x {size[1]} pixels: "
                f"{type(error).__name__}: {said}",
            ) from None


def _moved(character: int, added: Sequence[tuple[int, int]]) -> int:
    """Where a character is after what was added before it."""
    return character + next(moved for place, moved in reversed(added) if place < character)
