"""What names of files and folders show: `train-00000-of-00002.parquet`, `my_test.jsonl`.

If one of a folder's splits is a held-out one, the folder is never read as one split. A folder must
have each part of a file once.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar


class Named(Protocol):
    """A file with its path within the folder."""

    @property
    def name(self) -> str: ...


File = TypeVar("File", bound=Named)

USUALLY_HELD_OUT = (
    "validation", "valid", "val", "dev", "eval", "evaluation", "held_out", "held-out",
    "heldout", "hold_out", "hold-out", "holdout",
)  # fmt: skip
"""Usual names of held-out splits, besides `test`, the likeliest first."""
_NAMES = "|".join(("train", "training", "test", "testing", *USUALLY_HELD_OUT))
_SPLIT = re.compile(rf"(?:^|[-_. ])(?P<split>({_NAMES})(_[a-z]+)?)(?=[-_. \d]|$)", re.IGNORECASE)


def splits_of(files: Sequence[File]) -> dict[str, tuple[File, ...]]:
    """The files of each split, by the names of files or their folders, if one of the splits is a
    held-out one; else all files under an empty name."""
    found: dict[str, list[File]] = {}
    for file in files:
        found.setdefault(_place(file)[1], []).append(file)
    if all(split.lower().startswith("train") for split in found if split):
        return {"": tuple(files)}
    return {split: tuple(of_split) for split, of_split in sorted(found.items())}


def require_one(url: str, files: Sequence[Named], *, one_split: bool) -> None:
    """
    Args:
        one_split: the caller selects the files of one split, so there may be several.

    Raises:
        ValueError: the folder `url` has several splits, or several data sets with splits.
    """
    named, folder = splits_of(files), url.rstrip("/")
    if len(named) < 2:
        return
    places = [{_place(file)[0] for file in of_split} for of_split in named.values()]
    if any(len(of_split) > 1 for of_split in places):
        sets = sorted(set().union(*places))
        raise ValueError(
            f"{url} holds several data sets with splits, in the folders "
            f"{', '.join(place or '.' for place in sets)}: name one of them, as in "
            f"{folder}/{sets[-1]}, or each as a source of its own (data.mixture)"
        )
    if not one_split:
        listed = ", ".join(split or "files of no split" for split in named)
        raise ValueError(
            f"{url} holds several splits ({listed}), which are not read as one; say which is meant "
            f"with a pattern, as in {folder}/{_pattern(named)}, or with data.train_split "
            "and data.test_split"
        )


def _place(file: Named) -> tuple[str, str]:
    """The folder of a file's data set, and the split in its name, or else in its folder's name;
    empty if there is none. Of folders with the split's name, the outermost is in that folder."""
    parts = file.name.split("/")
    named = [found["split"] if (found := _SPLIT.search(part)) else "" for part in parts]
    split = next(filter(None, reversed(named)), "")
    return "/".join(parts[: named.index(split)]) if split else "", split


def _pattern(named: Mapping[str, Sequence[Any]]) -> str:
    """A pattern for the files of the first training split, or the first file of no split."""
    split = next((split for split in named if split.startswith("train")), next(iter(named)))
    if not split:
        return named[split][0].name
    folder, _, own = named[split][0].name.rpartition("/")
    before, found, _ = own.partition(split)
    return f"{folder}/{'*' if before else ''}{found}*".lstrip("/") if found else f"{folder}/*"


# --- parts of a file ------------------------------------------------------------------------------

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
