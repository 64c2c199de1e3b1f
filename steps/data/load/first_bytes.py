"""What a file without any valid row probably is, by its first bytes, and what to do with it."""

import fsspec

_SAID = (
    (b"[", "it is one JSON list: name it .json"),
    (b"PK\x03\x04", "it is a zip archive (or .xlsx): unpack or convert it"),
    (b"PAR1", "it is a Parquet file: name it .parquet"),
    (b"version https://git-lfs", "it is only git-lfs' pointer: `git lfs pull` gets the file"),
    (b'{"data":', "it is one object: write the list of its rows alone to a .json file"),
    (b"<", "it is a web page, or XML: download the file itself"),
)
_ARCHIVES = {".gz": (b"\x1f\x8b", "gzip"), ".zst": (b"\x28\xb5\x2f\xfd", "zstd")}


def probably(url: str) -> str:
    """The advice, as the end of an error; empty if the file is what its name says, or nothing that
    is known."""
    filesystem, path = fsspec.url_to_fs(url)
    with filesystem.open(path, "rb") as opened:
        head = opened.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    for suffix, (first, name) in _ARCHIVES.items() if head else ():
        if path.endswith(suffix) != head.startswith(first):
            change = f"leave {suffix} out of" if path.endswith(suffix) else f"add {suffix} to"
            is_one = "no" if path.endswith(suffix) else "a"
            return f"; it is {is_one} {name} file: {change} its name"
    return next((f"; {said}" for first, said in _SAID if head.startswith(first)), "")
