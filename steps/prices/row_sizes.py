"""The number of rows and their lengths, as text in a file and as tokens.

The sizes of rows are ``rows`` and ``text``, the mean bytes of a row in its file. The sizes of
tokens are ``rows`` and the mean lengths ``prompt``, ``chosen`` and ``rejected`` of pairs, or
``total`` of other rows. Both have ``parts`` by split.
"""

from collections.abc import Mapping
from pathlib import Path

import fsspec

from pipeline import File, HubDataset
from pipeline.price.estimator import Made, Sizes
from steps.sources import DataSource, Files, Mixed

BYTES_A_TOKEN = 4.0
"""The mean bytes of a token in English text."""
_LOOKED_AT = 2**18
_HUB: Mapping[tuple[str, str], Sizes] = {
    # rows: the dataset's card; text: the mean of a sample, without the chosen answer's second copy
    ("HuggingFaceH4/ultrafeedback_binarized", "train_prefs"): {"rows": 61135, "text": 4600},
    ("HuggingFaceH4/ultrafeedback_binarized", "test_prefs"): {"rows": 2000, "text": 4600},
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
    lines = max(1, beginning.count(b"\n"))
    mean = len(beginning) / lines
    size = Path(path).stat().st_size
    return {"rows": lines if size <= len(beginning) else round(size / mean), "text": mean}


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
