"""The forms in which models are exported: types that are importable without torch."""

from enum import StrEnum


class GgufType(StrEnum):
    """The type of the matrices in a GGUF file; vectors stay in float32.

    q8_0: 8 bits a weight and a float16 scale for each 32 of them: 8.5 bits a weight.
    """

    f32 = "f32"
    f16 = "f16"
    q8_0 = "q8_0"


class Adapters(StrEnum):
    """How low-rank adapters are exported.

    merged: adapters are merged into the weights.
    kept: adapters are merged into the weights, and also written to the folder ``adapter``, in
        `peft`'s format.
    alone: only the adapters are written, in `peft`'s format, to be loaded onto the base model.
    """

    merged = "merged"
    kept = "kept"
    alone = "alone"
