"""Takes images out of records and puts them into rows.

One column of a record contains its image or a list of images. An image is a path relative to the
data file, bytes, an object `{"bytes", "path"}` as in data sets on the Hub, or a text
`data:image/png;base64,…`.
Messages mark the place of an image with a part `{"type": "image"}`, a prompt with `<image>`. Images
without a marked place come before the first user message.

Only a prompt has images; responses are text.
"""

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steps.data.images.pictures import MAX_BYTES, Picture, picture, too_large
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message, Messages, PreferenceRow

MARK = "\ufffc"
"""The character that stands for an image in our rows."""
SPELLED = "<image>"
"""The mark of an image in prompts of LLaVA, LLaMA-Factory and others."""

_LONGEST_PATH = 500

Pictures = tuple[Picture, ...]


@dataclass(frozen=True)
class ImageColumn:
    """The column of a record that contains its images."""

    name: str

    def take(
        self, record: Mapping[str, Any], folder: Path | None
    ) -> tuple[dict[str, Any], Pictures]:
        """Split a record into the record without its images, and the images.

        In the new record, parts of messages that marked an image are text.

        Args:
            folder: the data file's folder; None if the file is not on this machine.

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
    """The row with its images at the places that its prompt marks.

    Raises:
        MalformedRow: the prompt marks fewer or more images than there are, or a response has one.
    """
    prompt = _placed(row.prompt, len(pictures))
    found = sum(message["content"].count(MARK) for message in prompt)
    if any(MARK in message["content"] for message in (*row.chosen, *row.rejected)):
        raise MalformedRow("images not matched", "a message after the prompt has an image")
    if found != len(pictures):
        raise MalformedRow(
            "images not matched", f"the row has {len(pictures)} images, its prompt marks {found}"
        )
    described: Iterator[dict[str, Any]] = (
        {"sha256": image.sha256, "width": image.width, "height": image.height} for image in pictures
    )
    return replace(row, prompt=tuple(_with_own(message, described) for message in prompt))


def images_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The images of a conversation, in order: `sha256`, `width`, `height`."""
    return [image for message in messages for image in message.get("images", ())]


def parts_of(message: Message) -> list[dict[str, str]]:
    """The content of a message as a list of parts, which the templates of processors expect."""
    parts: list[dict[str, str]] = []
    for index, text in enumerate(message["content"].split(MARK)):
        parts += [{"type": "image"}] if index else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts or [{"type": "text", "text": ""}]


def _with_own(message: Message, described: Iterator[dict[str, Any]]) -> Message:
    count = message["content"].count(MARK)
    return {**message, "images": [next(described) for _ in range(count)]} if count else message


def _placed(prompt: Messages, count: int) -> Messages:
    """A prompt with a mark for each image, if the number of marks in it can be right."""
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
    """A value of a record, with text in place of each part of a message that marks an image."""
    if isinstance(value, Mapping):
        if value.get("type") == "image":
            return _mark(value, field)
        return {key: _marked(item, f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        marked = [_marked(item, f"{field}[{index}]") for index, item in enumerate(value)]
        return value if marked == value else marked  # a cell stays one
    return value


def _mark(part: Mapping[str, Any], field: str) -> dict[str, str]:
    if own := [str(key) for key, item in part.items() if key != "type" and item not in (None, "")]:
        raise MalformedRow(
            "images not matched",
            f"{field} contains the image itself ({', '.join(own)}); put all images into a column "
            "of their own, in order",
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
    """The bytes of an image of a record, in any of the forms above."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str) and value:
        return _decoded(value, where) if value.startswith("data:") else _read(value, where, folder)
    found = "missing" if value is None else type(value).__name__
    raise MalformedRow("no image", f"{where} is {found}, expected a path, bytes or both")


def _decoded(url: str, where: str) -> bytes:
    kind, _, text = url.partition(",")
    try:
        if kind.endswith(";base64"):
            return base64.b64decode("".join(text.split()), validate=True)  # it may have lines
    except ValueError:
        pass
    raise MalformedRow("no image", f"{where} is {_shown(url)}, which is no base64")


def _read(path: str, where: str, folder: Path | None) -> bytes:
    if "://" in path or folder is None:
        raise MalformedRow(
            "no image",
            f"{where} is {_shown(path)}: images are read beside data files on this machine; "
            "download them, or put their bytes into the rows",
        )
    try:
        with open(folder / path, "rb") as file:  # a missing one is observed too
            if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
                raise too_large(where, f"{size:,} bytes, over the limit of {MAX_BYTES:,}")
            return file.read()
    except MalformedRow:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        if len(path) > _LONGEST_PATH:
            why = "too long for a path; an image as text begins as data:image/png;base64,"
        raise MalformedRow("no image", f"{where} is {_shown(path)}: {why}") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 120 else f"{text[:60]}…")
