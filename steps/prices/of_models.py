"""Estimates of steps that write a model folder without training: import, initialise, export."""

from pathlib import Path
from typing import Any

import fsspec

from pipeline import File, HubModel
from pipeline.price.estimator import Call, Estimator, Foreseen, Sizes
from steps.models.config import Dtype
from steps.prices.model_sizes import folder_bytes, of_config, of_folder, of_hub, of_path
from steps.prices.speed import Speed, speed_of

PROCESS, WORKING = 0.42e9, 0.12e9
"""Bytes of a process that has imported torch and transformers, without a model; and the additional
bytes when a model runs."""
_QUANTIZED, _NAMED = 100e6, 40e3
"""Parameters that one thread dequantises, and tokens whose names it reads, per second."""
_ROUNDED, _GGUF_WORD = 0.2e9, 39
"""Parameters that one thread rounds to 8 bits a second; bytes of a token's name in a GGUF file."""
_GGUF_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}
_PASSES = 3
"""How often a step goes through the weights that it writes: to check, write and hash them."""


def _imported(call: Call) -> Foreseen:
    source = call.arguments["source"]
    dtype = Dtype(call.arguments["dtype"])
    sizes = _of_source(source)
    is_quantized = isinstance(source, File) and source.url.endswith(".gguf")
    return _loaded_and_saved(call, sizes, dtype, copies=1.5,
                             seconds=_dequantizing(sizes) if is_quantized else 0.0)  # fmt: skip


def _dequantizing(sizes: Sizes) -> float:
    """Seconds to dequantise a GGUF file, including the construction of its vocabulary."""
    return sizes.get("parameters", 0) / _QUANTIZED + sizes.get("vocabulary", 0) / _NAMED


def _of_source(source: File | HubModel) -> Sizes:
    if isinstance(source, HubModel):
        return of_hub(source)
    fs, path = fsspec.url_to_fs(source.url)
    return of_path(Path(path)) if fs.protocol == "file" or "file" in fs.protocol else {}


def _initialised(call: Call) -> Foreseen:
    shape: Any = call.arguments["shape"]
    config = {
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.feed_forward,
        "num_attention_heads": shape.heads,
        "vocab_size": 34,
    }
    return _loaded_and_saved(call, of_config(config), Dtype.float32, copies=1.0)


def _exported(call: Call) -> Foreseen:
    return _loaded_and_saved(
        call, call.size("model"), Dtype(call.arguments["dtype"]), copies=1.0, reads=True
    )


def _loaded_and_saved(
    call: Call, sizes: Sizes, dtype: Dtype, copies: float, seconds: float = 0.0, reads: bool = False
) -> Foreseen:
    speed: Speed | None = speed_of(call.hardware)
    size = folder_bytes(sizes, dtype)
    if speed is None or size is None:
        return Foreseen(sizes)
    taken = speed.start + seconds + speed.files(size * (_PASSES + reads))
    return Foreseen({**sizes, "bytes": size}, taken, PROCESS + copies * size)


def _exported_gguf(call: Call) -> Foreseen:
    """One file, written tensor by tensor."""
    sizes, speed = call.size("model"), speed_of(call.hardware)
    if "parameters" not in sizes or speed is None:
        return Foreseen()
    parameters, vocabulary = sizes["parameters"], sizes["vocabulary"]
    size = parameters * _GGUF_BYTES[str(call.arguments["type"])] + _GGUF_WORD * vocabulary
    taken = speed.start + vocabulary / _NAMED + parameters / _ROUNDED
    taken += speed.files(_PASSES * size + 4 * parameters)
    largest = 4 * vocabulary * sizes["hidden"]
    return Foreseen({"bytes": size}, taken, PROCESS + 1.5 * largest)


IMPORTED = Estimator(_imported, of_folder, version=5)
INITIALISED = Estimator(_initialised, of_folder, version=5)
EXPORTED = Estimator(_exported, of_folder, version=5)
EXPORTED_GGUF = Estimator(_exported_gguf)
