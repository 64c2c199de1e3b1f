"""The number of rows and their lengths, as text in a file and as tokens.

The sizes of rows are ``rows`` and ``text``, the mean bytes of the texts of a row, each counted
once: a row of pairs may have its prompt three times. The sizes of tokens are ``rows`` and the mean
lengths ``prompt``, ``chosen`` and ``rejected`` of pairs, or ``total`` of other rows. Both have
``parts`` by split.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec

from pipeline import File, HubDataset
from pipeline.price.estimator import Made, Sizes
from steps.sources import DataSource, Files, Mixed

BYTES_A_TOKEN = 4.0
"""The mean bytes of a token in English text."""
_LOOKED_AT = 2**18
_HUB: Mapping[tuple[str, str], Sizes] = {  # rows: the dataset's card; text: the mean of a sample
    ("HuggingFaceH4/ultrafeedback_binarized", "train_prefs"): {"rows": 61135, "text": 3000},
    ("HuggingFaceH4/ultrafeedback_binarized", "test_prefs"): {"rows": 2000, "text": 3000},
}


def of_source(source: DataSource) -> Sizes:
    """The sizes of a source, from the size and the beginning of its files; empty if unknown."""
    if isinstance(source, HubDataset):
        return _HUB.get((source.repo, source.split), {})
    if isinstance(source, Mixed):
        return {}  # the rows of each part depend on which part ends first
    files = source.files if isinstance(source, Files) else (source,)
    found = [_of_file(file) for file in files]
    if not found or not all(found):
        return {}
    rows = sum(sizes["rows"] for sizes in found)
    return {"rows": rows, "text": sum(s["rows"] * s["text"] for s in found) / max(rows, 1)}


def _of_file(file: File) -> Sizes:
    """The sizes of a local file with one row per line."""
    fs, path = fsspec.url_to_fs(file.url)
    if "file" not in fs.protocol or not path.endswith((".jsonl", ".ndjson")):
        return {}
    with Path(path).open("rb") as opened:
        beginning = opened.read(_LOOKED_AT)
    size = Path(path).stat().st_size
    lines = beginning.splitlines()
    if size > len(beginning):  # the last one is cut
        lines = lines[:-1] or lines
    lines = [line for line in lines if line.strip()]
    if not lines:
        return {}
    share = size / sum(len(line) + 1 for line in lines)
    return {"rows": round(share * len(lines)), "text": sum(map(_text, lines)) / len(lines)}


def _text(line: bytes) -> int:
    """The bytes of the texts of a row, each counted once."""
    try:
        texts = set(_texts(json.loads(line)))
    except ValueError:  # the step will say what is wrong with it
        return len(line) // 2
    return sum(len(text.encode(errors="replace")) for text in texts)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, without the names of its fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def of_rows(made: Made) -> Sizes:
    """The sizes of rows that a step has read, by split. As the files are compressed, their sizes
    are only a rough measure of tokens."""
    counts = {
        name: count
        for name, count in made.manifest.metrics.items()
        if type(count) is int and any(file.startswith(f"{name}/") for file in made.manifest.files)
    }
    if pairs := made.manifest.metrics.get("pairs"):
        counts = {"train": pairs}
    sizes = {
        name: {
            "rows": count,
            "bytes": sum(
                e.size for f, e in made.manifest.files.items() if f.startswith(f"{name}/")
            ),
        }
        for name, count in counts.items()
    }
    return {"parts": sizes, "rows": sum(counts.values())}


def of_tokens(made: Made) -> Sizes:
    """The sizes of rows that a step has tokenised, with their mean lengths."""
    metrics = made.manifest.metrics
    lengths = {name: told["mean"] for name, told in metrics["lengths"].items() if told}
    counts = {name: metrics[name] for name in _splits(made)}
    if not counts:  # conversations and texts have no splits
        rows = next(iter(v for k, v in metrics.items() if k in ("conversations", "texts")), 0)
        return {"rows": rows, **lengths}
    parts = {name: {"rows": count, **lengths} for name, count in counts.items()}
    return {"rows": sum(counts.values()), "parts": parts, **lengths}


def _splits(made: Made) -> list[str]:
    return list(dict.fromkeys(f.split("/")[0] for f in made.manifest.files if "/" in f))
