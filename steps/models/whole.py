"""Whether a folder holds a whole model, judged by names, configs and headers; no weights are read.

It finds copies that are cut off, pointers of git-lfs and missing shards before a plan is shown.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WEIGHTS = (".safetensors", ".bin", ".index.json", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
_LFS = b"version https://git-lfs"
_LONGEST_HEADER = 100 * 2**20
"""Bytes; safetensors itself reads none that is longer."""


def fault_of(folder: Path) -> str:
    """What is wrong with a model's folder, as the end of "it …"; empty if nothing is."""
    return next(_faults(folder), "")


def _faults(folder: Path) -> Iterator[str]:
    names = sorted(os.listdir(folder))
    lowered = [name.lower() for name in names]
    if not any(name.endswith(_WEIGHTS) for name in lowered):
        yield "has no weights (model.safetensors)"
    if not any("token" in n or "vocab" in n or n.endswith(".model") for n in lowered):
        yield "has no tokenizer (tokenizer.json)"
    if "config.json" in names:
        yield from _config_faults(folder / "config.json")
    for name in names:
        if name.endswith(".safetensors.index.json"):
            yield from _index_faults(folder / name)
    for name in names:
        if name.endswith(".safetensors") and (fault := weights_fault(folder / name)):
            yield fault


def _config_faults(file: Path) -> Iterator[str]:
    if not isinstance(config := _read(file), dict):
        yield "has a config.json that is no JSON object"
    elif "model_type" not in config:
        yield "has a config.json that names no model_type"


def _index_faults(file: Path) -> Iterator[str]:
    index = _read(file)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict):
        yield f"has a {file.name} that names no shards"
        return
    missing = sorted(s for s in set(map(str, shards.values())) if not (file.parent / s).exists())
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        yield f"lacks {missing[0]}{more}, which {file.name} names"


def weights_fault(file: Path) -> str:
    """What is wrong with a file of safetensors: its size must be what its header says."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        first = opened.read(len(_LFS))
        if first == _LFS:
            return f"holds only git-lfs' pointer to {file.name} (`git lfs pull` gets the file)"
        opened.seek(0)
        length = int.from_bytes(opened.read(8), "little")
        header = _parsed(opened.read(length)) if length <= min(size, _LONGEST_HEADER) else None
    if not isinstance(header, dict):
        return f"has a {file.name} that is no safetensors file, or is cut off"
    ends = [_end_of(tensor) for name, tensor in header.items() if name != "__metadata__"]
    if size < (whole := 8 + length + max(ends, default=0)):
        return f"has a {file.name} that is cut off: {size} of {whole} bytes"
    return ""


def _end_of(tensor: Any) -> int:
    match tensor:
        case {"data_offsets": [int(), int() as end]}:
            return end
        case _:
            return 0


def _read(file: Path) -> Any:
    return _parsed(file.read_bytes())


def _parsed(text: bytes) -> Any:
    """The JSON value; ``None`` if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
