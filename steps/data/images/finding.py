"""Images taken out of records, and put into the rows that are made of these.

A column holds a row's images, one or a list. Each is a path, relative to the data file; bytes; an
object `{"bytes", "path"}`, as data sets on the Hub have them; or an image of Pillow's. Where in the
text they belong, messages say with parts `{"type": "image"}`, in order, or a prompt with as many
`<image>`; where nothing says so, they come before the first user message.

Images belong to the prompt: what a model is to write is text.
"""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steps.data.images.pictures import MAX_BYTES, Picture, picture, too_large
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message, Messages, PreferenceRow

MARK = "\ufffc"
"""Stands for an image in a text."""
SPELLED = "<image>"
"""Stands for one in the prompts of LLaVA, LLaMA-Factory and others."""

Pictures = tuple[Picture, ...]


@dataclass(frozen=True)
class ImageColumn:
    """The column of records that holds their images."""

    name: str

    def take(
        self, record: Mapping[str, Any], folder: Path | None
    ) -> tuple[dict[str, Any], Pictures]:
        """The record without its images, of which the parts of messages are texts now; and these.

        Args:
            folder: where the data file lies; None: nowhere on this machine.

        Raises:
            MalformedRow: an image is missing, cannot be read or is too large.
        """
        if record.get(self.name) is None:
            raise MalformedRow("no image", f"{self.name} is missing; of a row without images it "
                               "is an empty list")  # fmt: skip
        value = record[self.name]
        listed = value if isinstance(value, list | tuple) else [value]
        pictures = tuple(
            picture(_content(item, where, folder), where)
            for index, item in enumerate(listed)
            for where in (f"{self.name}[{index}]" if listed is value else self.name,)
        )
        rest = {name: item for name, item in record.items() if name != self.name}
        if any(MARK in text for text in _texts(rest)):
            raise MalformedRow(
                "images not matched", "a text holds U+FFFC, which stands for an image"
            )
        return {name: _marked(item, name) for name, item in rest.items()}, pictures


def with_images(row: PreferenceRow, pictures: Pictures) -> PreferenceRow:
    """`row` with its images where its prompt marks them.

    Raises:
        MalformedRow: the prompt marks another number of images, or a response has one.
    """
    prompt = _placed(row.prompt, len(pictures))
    found = sum(message["content"].count(MARK) for message in prompt)
    if any(MARK in message["content"] for message in (*row.chosen, *row.rejected)):
        raise MalformedRow("images not matched", "a message after the prompt has an image")
    if found != len(pictures):
        raise MalformedRow(
            "images not matched", f"the row has {len(pictures)} images, its prompt marks {found}"
        )
    described = iter(map(_described, pictures))
    return replace(row, prompt=tuple(_with_own(message, described) for message in prompt))


def images_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The images of a conversation, in order: `sha256`, `width`, `height`."""
    return [image for message in messages for image in message.get("images", ())]


def parts_of(message: Message) -> list[dict[str, str]]:
    """The content of a message in parts, as templates of processors want it."""
    parts: list[dict[str, str]] = []
    for index, text in enumerate(message["content"].split(MARK)):
        parts += [{"type": "image"}] if index else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts or [{"type": "text", "text": ""}]


def _with_own(message: Message, described: Iterator[dict[str, Any]]) -> Message:
    count = message["content"].count(MARK)
    return {**message, "images": [next(described) for _ in range(count)]} if count else message


def _described(image: Picture) -> dict[str, Any]:
    return {"sha256": image.sha256, "width": image.width, "height": image.height}


def _placed(prompt: Messages, count: int) -> Messages:
    """A prompt with a mark for each image, if it can be told where these belong."""
    asked = [index for index, message in enumerate(prompt) if message["role"] == "user"]
    if not count or not asked or any(MARK in message["content"] for message in prompt):
        return prompt
    spelled = sum(prompt[index]["content"].count(SPELLED) for index in asked)
    if spelled == count:
        changed = {i: prompt[i]["content"].replace(SPELLED, MARK) for i in asked}
    elif not spelled:
        changed = {asked[0]: MARK * count + prompt[asked[0]]["content"]}
    else:
        raise MalformedRow(
            "images not matched", f"the row has {count} images, its prompt {spelled} {SPELLED}"
        )
    return tuple(
        {**message, "content": changed.get(index, message["content"])}
        for index, message in enumerate(prompt)
    )


def _marked(value: Any, field: str) -> Any:
    """A value of a record in which every part of a message that is an image is a text."""
    if isinstance(value, Mapping):
        if value.get("type") == "image":
            return _mark(value, field)
        return {key: _marked(item, f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item, f"{field}[{index}]") for index, item in enumerate(value)]
    return value


def _mark(part: Mapping[str, Any], field: str) -> dict[str, str]:
    if own := [str(key) for key, item in part.items() if key != "type" and item not in (None, "")]:
        raise MalformedRow(
            "images not matched",
            f"{field} holds an image of its own ({', '.join(own)}); put images into a column of "
            "their own, in order",
        )
    return {"type": "text", "text": MARK}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


# --- bytes ---------------------------------------------------------------------------------------


def _content(value: Any, where: str, folder: Path | None) -> bytes:
    """The bytes of an image, in whatever way a record holds it."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str) and value:
        return _read(value, where, folder)
    if hasattr(value, "save") and hasattr(value, "convert"):
        return _encoded(value)
    said = "missing" if value is None else f"{type(value).__name__}"
    raise MalformedRow("no image", f"{where} is {said}, expected a path, bytes or both")


def _read(path: str, where: str, folder: Path | None) -> bytes:
    if "://" in path or folder is None:
        raise MalformedRow(
            "no image",
            f"{where} is {path!r}: images are read beside data files on this machine; download "
            "them, or put their bytes into the rows",
        )
    try:
        with open(folder / path, "rb") as file:  # an attempt is seen, where the file is missing too
            if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
                raise too_large(where, f"{size:,} bytes, over the limit of {MAX_BYTES:,}")
            return file.read()
    except MalformedRow:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise MalformedRow("no image", f"{where} is {path!r}: {why}") from None


def _encoded(image: Any) -> bytes:
    """An image of Pillow's as a file, without loss."""
    kept = image if image.mode in ("L", "RGB", "RGBA", "P", "1", "LA") else image.convert("RGB")
    with io.BytesIO() as written:
        kept.save(written, format="PNG", compress_level=1)
        return written.getvalue()
