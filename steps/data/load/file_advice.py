"""What a file without a valid row probably is, and what to do with it.

An advice is part of an error. It is empty where nothing is known.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec

from steps.data.load.shards import FileShard, Shard

_HEAD = 1 << 16
_LISTS = 'its rows are lists: write each as an object, as in {"messages": [...]}'
_BEGINNINGS = (
    (rb"PK\x03\x04", "it is a zip archive (or .xlsx): unpack or convert it"),
    (rb"PAR1", "it is a Parquet file: name it .parquet"),
    (rb"\x1f\x8b", "it is a gzip file: add .gz to its name"),
    (rb"\x28\xb5\x2f\xfd", "it is a zstd file: add .zst to its name"),
    (rb"version https://git-lfs", "it is only git-lfs' pointer: `git lfs pull` gets the file"),
    (
        rb"[\t-\r -~]+(?:[\x80-\xbf]|[\xc0-\xff](?![\x80-\xbf]))",
        "save it in UTF-8, as with `iconv -f windows-1252 -t utf-8 FILE > NEW_FILE`",
    ),
    (rb"<", "it is a web page, or XML: download the file itself"),
    (rb"\[\s*\[|\[.*\]\s*\n\[", _LISTS),
    (rb"\[", "it is one JSON list: name it .json"),
    (rb"\{'", "these are Python's dicts: write each row with json.dumps"),
    (rb"\{\s*\n", "each object takes several lines: write one a line, or a list of them as .json"),
    (rb"\{.*\},\s*\n", "its lines end in commas: leave them out, one object a line"),
    (rb"\{", "it holds JSON: name it .jsonl or .json"),
    (rb"[^,\n]*\t", "its cells are parted by tabs: name it .tsv"),
    (rb"[^,\n]*;[^,\n]*\n", "its cells are parted by ';': write it with commas"),
)
COLUMNS = "it is one object of columns: write one object a row, as pandas' orient='records' does"


def of_file(shard: Shard) -> str:
    """What the first bytes of a file tell, if its name does not say so already."""
    if not isinstance(shard, FileShard):
        return ""
    filesystem, path = fsspec.url_to_fs(shard.url)
    with filesystem.open(path, "rb") as opened:
        head = opened.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
    told = (said for first, said in _BEGINNINGS if re.match(first, head))
    said = next(told, "")
    named = tuple(re.findall(r" (\.\w+)", said))
    return "" if path.endswith(named) else said


def of_only_record(records: Sequence[Mapping[str, Any]]) -> str:
    """What to do where the only record of a file holds its rows."""
    if len(records) != 1:
        return ""
    (record,) = records
    listed = (name for name, value in record.items() if _are_rows(value))
    if name := next(listed, None):
        return (
            f"it is one object, whose field {name} holds the rows: write that list alone, as in "
            f"`jq '.\"{name}\"' FILE.json > rows.json`"
        )
    return COLUMNS if are_columns(record) else ""


def are_columns(record: Mapping[str, Any]) -> bool:
    """Whether an object has a list for each column of a table, with as many values each."""
    columns = [value for value in record.values() if isinstance(value, list)]
    plain = not any(isinstance(item, Mapping) for column in columns for item in column)
    return plain and len({*map(len, columns)}) == 1 and len(columns) == len(record) > 1


def _are_rows(value: Any) -> bool:
    """Whether a value is a list of objects that are no messages."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(i, Mapping) and not {"role", "from"} & i.keys() for i in value)
