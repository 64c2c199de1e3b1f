"""What a file without any valid row probably is, by its first bytes, and what to do with it."""

import json
from collections.abc import Sequence

import fsspec

_SAID = (
    (b"PK\x03\x04", "it is a zip archive (or .xlsx): unpack or convert it"),
    (b"PAR1", "it is a Parquet file: name it .parquet"),
    (b"version https://git-lfs", "it is only git-lfs' pointer: `git lfs pull` gets the file"),
    (b'{"data":', "it is one object: write the list of its rows alone to a .json file"),
    (b"<", "it is a web page, or XML: download the file itself"),
)
_LISTS = 'its rows are lists: write each as an object, as in {"messages": [...]}'
_HEAD = 1 << 16
_ARCHIVES = {".gz": (b"\x1f\x8b", "gzip"), ".zst": (b"\x28\xb5\x2f\xfd", "zstd")}


def probably(url: str) -> str:
    """The advice, as the end of an error; empty if the file is what its name says, or nothing that
    is known."""
    filesystem, path = fsspec.url_to_fs(url)
    with filesystem.open(path, "rb") as opened:
        head = opened.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
    for suffix, (first, name) in _ARCHIVES.items() if head else ():
        if path.endswith(suffix) != head.startswith(first):
            change = f"leave {suffix} out of" if path.endswith(suffix) else f"add {suffix} to"
            is_one = "no" if path.endswith(suffix) else "a"
            return f"; it is {is_one} {name} file: {change} its name"
        if path.endswith(suffix):
            return ""
    if path.endswith(".parquet") and head[:1] in (b"{", b"["):
        return f"; it holds JSON: name it {'.jsonl' if head[:1] == b'{' else '.json'}"
    if path.endswith(".parquet") and head.startswith(b"PAR1"):
        return "; it is cut off, or damaged: get the whole file again"
    if head.startswith(b"["):
        said = _of_list(head) if path.endswith(".json") else _of_lists(head.splitlines())
    else:
        said = next((said for first, said in _SAID if head.startswith(first)), "") or _by_line(head)
    return f"; {said}" if said else ""


def _of_list(head: bytes) -> str:
    """Of a file with one list, from whose items no row is read."""
    return _LISTS if head[1:].lstrip().startswith(b"[") else ""


def _of_lists(lines: Sequence[bytes]) -> str:
    """Of a file that begins with a list: it is one, or each of its rows is one."""
    if len(lines) > 1 and lines[1].startswith(b"[") and _is_json(lines[0]):
        return _LISTS
    return "it is one JSON list: name it .json"


def _by_line(head: bytes) -> str:
    """What the first line of a text file tells."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if b"\0" in head:  # no text of single bytes: the reader has said what it is
            return ""
        if error.end < len(head):  # else a letter is cut where `head` ends
            return "save it in UTF-8, as with `iconv -f windows-1252 -t utf-8 FILE > NEW_FILE`"
    if b"\r" in head.rstrip() and b"\n" not in head:
        return (
            "its lines end as on old Macs: convert it, as with `tr '\\r' '\\n' < FILE > NEW_FILE`"
        )
    line = head.splitlines()[0].rstrip() if head else b""
    if line.startswith(b"{'"):
        return "these are Python's dicts: write each row with json.dumps"
    if line == b"{":
        return "each object takes several lines: write one a line, or a list of them as .json"
    if line.startswith(b"{") and line.endswith(b",") and _is_json(line[:-1]):
        return "its lines end in commas: leave them out, one object a line"
    if b"\t" in line and b"," not in line:
        return "its cells are parted by tabs: name it .tsv"
    marks = [row.count(b";") for row in head.splitlines()[:2]]
    is_table = len(marks) == 2 and marks[0] == marks[1] > 0
    if is_table and not any(mark in line for mark in (b",", b"{", b"[")):
        return "its cells are parted by ';': write it with commas"
    return ""


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
