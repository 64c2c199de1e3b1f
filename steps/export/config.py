"""In which form a model is handed over: data that is importable without torch."""

from enum import StrEnum


class GgufType(StrEnum):
    """The type of the matrices in a GGUF file; vectors stay in float32.

    q8_0: 8 bits a weight and a float16 scale for each 32 of them: 8.5 bits a weight.
    """

    f32 = "f32"
    f16 = "f16"
    q8_0 = "q8_0"


class Adapters(StrEnum):
    """What becomes of low-rank adapters that a model was trained with.

    merged: they are in the weights only.
    kept: they are in the weights, and by themselves in the folder ``adapter``, as `peft` loads them
        beside the base.
    alone: only they are written, for whoever has the base.
    """

    merged = "merged"
    kept = "kept"
    alone = "alone"
