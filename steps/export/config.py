"""The forms in which models are exported: types that are importable without torch."""

from dataclasses import dataclass
from enum import StrEnum

from steps.shared.checks import require, require_count


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


@dataclass(frozen=True)
class ExportCheckConfig:
    """On which texts an export is compared with its original.

    Args:
        prompts: what the original answers; its chat template renders them, if it has one.
        tokens: the most tokens of an answer, which is drawn at temperature 1.
        seed: the seed of the answers.
    """

    prompts: tuple[str, ...] = (
        "What is the capital of Norway?",
        "Schreibe zwei Sätze über den Winter.",
        "用一句话介绍北京。",
        "Write a Python function that returns the mean of a list.",
        "List three primes and 1234567,  then a tab\tand a 🎉.",
        "Why is the sky blue? Answer like a pirate.",
    )
    tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        require_count(self, "tokens")
        require(bool(self.prompts), "prompts must not be empty", self.prompts)
