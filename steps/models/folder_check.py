"""Whether a folder holds a whole model, judged by names, configs and headers; no weights are read.

It finds copies that are cut off, pointers of git-lfs and missing shards before a plan is shown.
"""

import json
import os
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from steps.data.vocabularies import has_tokenizer
from steps.models.config import ADAPTER_FILE, DEQUANTISED

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The files that transformers reads, each also in shards, which a file with ``_INDEX`` names."""
_INDEX = ".index.json"
_NO_FLOATS = re.compile(r"(BOOL|[IU]\d+)")
_LFS = b"version https://git-lfs"
_LONGEST_HEADER = 100 * 2**20
"""Bytes; safetensors itself reads none that is longer."""


def fault_of(folder: Path, trains: bool = True) -> str:
    """What is wrong with a model's folder, as the end of "it …"; empty if nothing is.

    Args:
        trains: whether it is also wrong that the weights are quantised.
    """
    return next(chain(_quantised(folder) if trains else (), _faults(folder)), "")


def has_chat_template(folder: Path) -> bool:
    """Whether a file in which transformers looks for a chat template has one, or none is there."""
    config = folder / "tokenizer_config.json"
    if (folder / "chat_template.jinja").exists() or not config.is_file():
        return True
    settings = _read(config)
    return not isinstance(settings, dict) or bool(settings.get("chat_template"))


def _faults(folder: Path) -> Iterator[str]:
    names = sorted(os.listdir(folder))
    for name in names:
        if not (folder / name).exists():
            yield f"has a {name} that is a link to nothing"
        if _is_pointer(folder / name):
            yield f"holds only git-lfs' pointer to {name} (`git lfs pull` gets the file)"
    if not any(name.removesuffix(_INDEX) in _WEIGHTS for name in names):
        shards = next((name for name in names if name.endswith(".safetensors")), "")
        yield "has no weights (model.safetensors)" + (
            f", and no model.safetensors.index.json that names {shards}" if shards else ""
        )
    if not has_tokenizer(folder):
        yield "has no tokenizer (tokenizer.json)"
    if ADAPTER_FILE in names:
        yield f"has both a whole model and an adapter ({ADAPTER_FILE}), which may be merged into it"
    if "config.json" in names:
        yield from _config_faults(folder / "config.json")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if name in names and not _looks_whole(folder / name):
            yield f"has a {name} that is no JSON object, or is cut off"
    if "generation_config.json" in names:
        yield from _end_faults(folder / "generation_config.json")
    for name in names:
        if name.endswith(f".safetensors{_INDEX}"):
            yield from _index_faults(folder / name)
    for name in names:
        if name.endswith(".safetensors"):
            yield from _weights_faults(folder / name)


def _is_pointer(file: Path) -> bool:
    return file.is_file() and _ends(file)[0].startswith(_LFS)


def _looks_whole(file: Path) -> bool:
    """Whether a file begins and ends as a JSON object; some are too long to parse for a plan."""
    first, last = _ends(file)
    return first.lstrip()[:1] == b"{" and last.rstrip()[-1:] == b"}"


def _ends(file: Path) -> tuple[bytes, bytes]:
    """Up to 64 bytes from either end of a file."""
    with file.open("rb") as opened:
        first = opened.read(64)
        opened.seek(max(0, file.stat().st_size - 64))
        return first, opened.read()


def _config_faults(file: Path) -> Iterator[str]:
    match _read(file):
        case {"model_type": str()}:
            return
        case dict():
            yield "has a config.json that names no model_type"
        case _:
            yield "has a config.json that is no JSON object"


def _end_faults(file: Path) -> Iterator[str]:
    """The tokens that end a completion must be numbers."""
    settings = _read(file)
    ends = settings.get("eos_token_id") if isinstance(settings, dict) else None
    for end in ends if isinstance(ends, list) else [ends]:
        if end is not None and type(end) is not int:
            yield f"has a {file.name} whose eos_token_id has {end!r:.40}, which is no number"


def _quantised(folder: Path) -> Iterator[str]:
    match _read(folder / "config.json"):
        case {"quantization_config": {"quant_method": str(method)}} if method not in DEQUANTISED:
            yield f"has weights that {method} has quantised, and that cannot be trained"
    for file in sorted(filter(Path.is_file, folder.glob("*.safetensors"))):
        for name, tensor in (_header_of(file)[0] or {}).items():
            match tensor:
                case {"dtype": str(dtype)} if name.endswith("weight") and _NO_FLOATS.match(dtype):
                    yield f"has quantised weights: {name} of {file.name} has no floats"


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
    whole = file.name.removesuffix(_INDEX)
    if whole not in shards.values() and (file.parent / whole).exists():
        yield (
            f"has a {whole} beside shards that {file.name} names, and only the former would be "
            "read; delete the one that is stale"
        )


def _weights_faults(file: Path) -> Iterator[str]:
    """The size of a file of safetensors must be what its header says."""
    header, begin = _header_of(file)
    if header is None:
        yield f"has a {file.name} that is no safetensors file, or is cut off"
        return
    ends = [_end_of(tensor) for name, tensor in header.items() if name != "__metadata__"]
    if (size := file.stat().st_size) < (whole := begin + max(ends, default=0)):
        yield f"has a {file.name} that is cut off: {size} of {whole} bytes"


def _header_of(file: Path) -> tuple[dict[str, Any] | None, int]:
    """The tensors that a file of safetensors names, ``None`` if it is no such file; and the place
    of the first byte behind its header."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        fits = length <= min(file.stat().st_size, _LONGEST_HEADER)
        header = _parsed(opened.read(length)) if fits else None
    return header if isinstance(header, dict) else None, 8 + length


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
