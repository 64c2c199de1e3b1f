"""The memory of a training step on each chip of a TPU slice, by the compiler; needs no TPU.

    python benchmarks/tpu_fit.py            the table of jax_backend/BACKEND.md, minutes a row
    python benchmarks/tpu_fit.py 1b v5e:2x4                 one row
    python benchmarks/tpu_fit.py 1b v5e:2x4 2               of two slices
    python benchmarks/tpu_fit.py 1b v5e:2x4 1 train_sft     of another step
    python benchmarks/tpu_fit.py 1b h100:8                  of GPUs

Needs ``pip install 'temper-ml[tpu]'``, for GPUs ``'temper-ml[cuda]'``. Only the shapes of
weights are used: nothing is loaded.
"""

import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from benchmarks.llamas import LLAMAS
from steps.jax_backend.command import FittedStep, report
from steps.jax_backend.fitting.fit import Step, compile_step
from steps.jax_backend.static_batches import scored_size
from steps.models.config import ActivationCheckpointing

SHAPES: dict[str, dict[str, Any]] = {
    "toy": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
        "tie_word_embeddings": True,
    },
    **LLAMAS,
}
ROWS = [  # the shapes of train_online are those of train_sft
    ("1b", "v5e:2x4", "1", "train_dpo"),
    ("1b", "v5e:2x4", "1", "train_sft"),
    ("1b", "v5e:2x4", "2", "train_dpo"),
    ("1b", "v6e:2x4", "1", "train_dpo"),
    ("8b", "v5e:4x4", "1", "train_dpo"),
    ("8b", "v5p:2x2x1", "1", "train_dpo"),
    ("8b", "v5p:2x2x1", "1", "train_sft"),
    ("8b", "v5p:2x2x2", "1", "train_dpo"),
    ("8b", "v6e:2x4", "1", "train_dpo"),
    ("8b", "v6e:2x4", "2", "train_dpo"),
]


TOKENS = 2048


def main(shape: str, topology: str, slices: str = "1", step: str = "train_dpo") -> None:
    scored = scored_size(int(TOKENS * FittedStep(step).scored_share), TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        LlamaConfig(**SHAPES[shape], max_position_embeddings=8192).save_pretrained(folder)
        rewards = step == FittedStep.train_reward_model
        wanted = Step(TOKENS, scored, recomputed=ActivationCheckpointing.full, rewards=rewards)
        found = compile_step(Path(folder), topology, wanted, int(slices))
    print(f"{shape} {step}\n{report(found, TOKENS, scored)}\n", flush=True)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="?", choices=SHAPES)
    parser.add_argument("topology", nargs="?", help="such as v5e:2x4")
    parser.add_argument("slices", nargs="?", default="1")
    parser.add_argument("step", nargs="?", default="train_dpo", choices=[*FittedStep])
    asked = parser.parse_args()
    if asked.shape and not asked.topology:
        parser.error("give a topology, too, such as v5e:2x4")
    rows = [(asked.shape, asked.topology, asked.slices, asked.step)] if asked.shape else ROWS
    for row in rows:
        main(*row)
