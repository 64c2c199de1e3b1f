"""Files of images beside rows: `images/images-00000.parquet` and so on, each image once.

The sha256 of its bytes names an image; it is checked whenever the image is read.
"""

import hashlib
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from steps.data.images.pictures import Picture

IMAGES = "images"
_FILES = "images-*.parquet"
_TOGETHER = 8
"""The images in a row group: reading one image reads its whole group."""


def write_images(path: Path, pictures: Sequence[Picture]) -> None:
    """Write images to a file, unchanged."""
    import pyarrow as pa  # slow to import; step files import this module to plan
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [
        [picture.sha256 for picture in pictures],
        [picture.width for picture in pictures],
        [picture.height for picture in pictures],
        [picture.content for picture in pictures],
    ]
    types = {
        "sha256": pa.string(), "width": pa.int32(), "height": pa.int32(), "content": pa.binary(),
    }  # fmt: skip
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types.values(), strict=True)]
    table = pa.table(arrays, schema=schema)
    pq.write_table(
        table,
        path,
        row_group_size=_TOGETHER,
        compression="none",  # images are compressed already
        use_dictionary=False,
        write_statistics=False,  # they would contain images a second time
        store_schema=False,
    )


def copy_images(source: Path, target: Path) -> None:
    """Copy the images beside the rows of a folder to another folder, if there are any."""
    for file in sorted((source / IMAGES).glob(_FILES)):
        (target / IMAGES).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / IMAGES / file.name)


class ImageTable:
    """The images beside the rows of `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / IMAGES

    def content(self, sha256: str) -> bytes:
        """The bytes of an image.

        Raises:
            ValueError: the image is missing or damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if sha256 not in self._places:
            raise ValueError(f"{self.folder} lacks the image {sha256}; tokenise the rows again")
        file, group, row = self._places[sha256]
        try:
            with pq.ParquetFile(file) as opened:
                column = opened.read_row_group(group, columns=["content"], use_threads=False)
            content = column["content"][row].as_py()
        except (OSError, IndexError, pa.ArrowException) as error:
            raise ValueError(f"{file} is damaged: {error}; make it again") from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError(f"{file} is damaged: the image {sha256} is another; make it again")
        return content

    @cached_property
    def _places(self) -> dict[str, tuple[Path, int, int]]:
        """The file of each image, the row group in it, and the row in that."""
        import pyarrow.parquet as pq

        found: dict[str, tuple[Path, int, int]] = {}
        for file in sorted(self.folder.glob(_FILES)):
            names = pq.read_table(file, columns=["sha256"], use_threads=False)["sha256"].to_pylist()
            for index, name in enumerate(names):
                found.setdefault(name, (file, *divmod(index, _TOGETHER)))
        return found
