"""Numbered parts of a file (`train-00000-of-00002.parquet`): a folder must have each once."""

import re
from collections import Counter
from collections.abc import Sequence

_PART = re.compile(
    r"(?P<before>.*?)(?P<number>\d{1,6})[-_]of[-_](?P<parts>\d{1,6})(?!\d)(?:-[0-9a-f]{16}(?=\.))?"
    r"(?P<after>.*)"
)
"""A part's name. Older versions of `datasets` wrote a hash behind the numbers, another one for each
part."""


def require_all(url: str, names: Sequence[str]) -> None:
    """Raises ValueError: the folder `url` lacks parts, or has them of two copies."""
    files: dict[str, dict[int, Counter[int]]] = {}
    for found in filter(None, map(_PART.fullmatch, names)):
        copies = files.setdefault(f"{found['before']}*{found['after']}", {})
        copies.setdefault(int(found["parts"]), Counter())[int(found["number"])] += 1
    for whole, copies in files.items():
        if len(copies) > 1:
            listed = " and in ".join(map(str, sorted(copies)))
            raise ValueError(f"{url} holds {whole} in {listed} parts; {_TWICE}")
        for parts, there in copies.items():
            if len(there) < there.total():
                raise ValueError(f"{url} holds parts of {whole} twice; {_TWICE}")
            if len(there) < parts:
                raise ValueError(
                    f"{url} holds {len(there)} of the {parts} parts of {whole}; get the others, or "
                    "say with a pattern that these are meant"
                )


_TWICE = "its rows would be read twice: delete the parts of the older copy"
