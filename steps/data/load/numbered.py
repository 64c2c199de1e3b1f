"""Numbered parts of a file (`train-00000-of-00002.parquet`): a folder must have each once."""

import re
from collections.abc import Sequence

_PART = re.compile(r"(?P<before>.*?)(?P<number>\d{1,6})[-_]of[-_](?P<parts>\d{1,6})(?!\d)")


def require_all(url: str, names: Sequence[str]) -> None:
    """Raises ValueError: the folder `url` lacks parts, or has them of two copies."""
    numbers: dict[str, dict[int, set[int]]] = {}
    for found in filter(None, map(_PART.match, names)):
        whole = found.string[: found.start("number")] + "*" + found.string[found.end("parts") :]
        numbers.setdefault(whole, {}).setdefault(int(found["parts"]), set()).add(
            int(found["number"])
        )
    for whole, copies in numbers.items():
        if len(copies) > 1:
            listed = " and in ".join(map(str, sorted(copies)))
            raise ValueError(
                f"{url} holds {whole} in {listed} parts; its rows would be read twice: delete the "
                "parts of the older copy"
            )
        for parts, there in copies.items():
            if len(there) < parts:
                raise ValueError(
                    f"{url} holds {len(there)} of the {parts} parts of {whole}; get the others, or "
                    "say with a pattern that these are meant"
                )
