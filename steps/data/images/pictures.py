"""Checks the bytes of images, and decodes them to the pixels that a processor takes.

An image is turned as its EXIF data says and converted to RGB, on white where it is transparent.
Only the first frame of an animation is read.
"""

import hashlib
import io
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from steps.data.rows.reasons import MalformedRow

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""The formats that are read. Some others of Pillow start programs or have no pixels."""
MAX_BYTES = 32 * 2**20
MAX_PIXELS = 2**26
"""67 million: a larger image is a mistake, or an attempt to use up the memory."""
_MODES = frozenset(
    {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"}
)
"""Modes with at most 8 bits a channel: Pillow clips brighter values of others without a warning."""


@dataclass(frozen=True)
class Picture:
    """An image that can be decoded.

    Attributes:
        content: the bytes of its file.
        width, height: in pixels, after it was turned.
    """

    content: bytes
    width: int
    height: int

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def picture(content: bytes, where: str) -> Picture:
    """The image in these bytes; all of its pixels are decoded, to be sure that they can be.

    Args:
        where: names the image in errors.

    Raises:
        MalformedRow: the image is too large, or cannot be decoded.
    """
    if len(content) > MAX_BYTES:
        raise too_large(where, f"{len(content):,} bytes, over the limit of {MAX_BYTES:,}")
    width, height = _readable(content, where).size
    return Picture(content, width, height)


def pixels(content: bytes) -> "Image":
    """The image in RGB. For a damaged image it raises what the decoder raises."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
        return _turned(opened)


def _readable(content: bytes, where: str) -> "Image":
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            _check(opened, where)
            return _turned(opened)
    except MalformedRow:
        raise
    except UnidentifiedImageError:
        raise MalformedRow(
            "broken image",
            f"{where}, of {len(content):,} bytes, is damaged or in none of the formats "
            f"{', '.join(FORMATS)}; get it again, or convert it to PNG",
        ) from None
    except Exception as error:  # decoders have no common base class of errors
        said = re.sub(r" at 0x\w+", "", " ".join(str(error).split()))[:200]
        raise MalformedRow(
            "broken image", f"{where} cannot be read: {type(error).__name__}: {said}"
        ) from None


def _turned(opened: "Image") -> "Image":
    from PIL import ImageOps

    turned: Any = ImageOps.exif_transpose(opened)
    return _opaque(turned)


def _opaque(image: "Image") -> "Image":
    """An image in RGB, on white where it is transparent, as processors of transformers have it; the
    colours under transparent pixels are mostly black, and nobody has seen them."""
    from PIL import Image

    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def too_large(where: str, size: str) -> MalformedRow:
    return MalformedRow("image too large", f"{where} has {size}")


def _check(opened: "Image", where: str) -> None:
    width, height = opened.size
    if width * height > MAX_PIXELS:
        raise too_large(where, f"{width} x {height} pixels, over the limit of {MAX_PIXELS:,}")
    if opened.mode not in _MODES:
        raise MalformedRow(
            "broken image", f"{where} is in Pillow's mode {opened.mode}; convert it to 8-bit RGB"
        )
