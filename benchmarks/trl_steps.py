"""Record twenty steps of TRL's `DPOTrainer`, for a test that repeats them without TRL.

    python benchmarks/trl_steps.py PYTHON     write tests/golden/trl_steps.json

PYTHON is an interpreter that can import trl. The model is tiny. A formula generates its weights and
the pairs, so this file is sufficient to reproduce them.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measuring import side

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests/golden/trl_steps.json"
STEPS, BATCH_SIZE, RATE, BETA = 20, 4, 2e-3, 0.5
WORDS, END = 61, 61
LOGGED = ("loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/margins",
          "rewards/accuracies", "logps/chosen", "logps/rejected")  # fmt: skip


def pairs() -> list[tuple[list[int], list[int], list[int]]]:
    """Prompt, chosen and rejected ids of every pair, in the order in which they are seen."""
    draw = draws(seed=1)

    def ids(longest: int) -> list[int]:
        return [next(draw) % WORDS for _ in range(1 + next(draw) % longest)]

    return [(ids(12), [*ids(14), END], [*ids(14), END]) for _ in range(STEPS * BATCH_SIZE)]


def texts(of: Iterable[tuple[list[int], ...]] = ()) -> Iterator[dict[str, str]]:
    """The pairs, or those given, as text, for TRL, which adds the end of text itself."""
    for pair in of or pairs():
        prompt, chosen, rejected = (" ".join(f"w{i}" for i in ids if i != END) for ids in pair)
        yield {"prompt": f"{prompt} ", "chosen": chosen, "rejected": rejected}


def write_model(folder: Path) -> None:
    """A tiny Llama with a tokenizer of one token for each word."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=WORDS + 3, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=END, pad_token_id=END + 1,
    )  # fmt: skip
    model, draw = LlamaForCausalLM(config), draws(seed=2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                values = [next(draw) / 2**32 - 0.5 for _ in range(parameter.numel())]
                parameter.copy_(torch.tensor(values).view_as(parameter) * 0.7)
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(WORDS)} | {"<end>": END, "<pad>": END + 1, "<unk>": END + 2}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)


def draws(seed: int) -> Iterator[int]:
    """32-bit numbers that are the same everywhere (the upper halves of Knuth's MMIX generator)."""
    state = seed
    while True:
        state = (6364136223846793005 * state + 1442695040888963407) % 2**64
        yield state >> 32


def _job(folder: Path) -> dict[str, Any]:
    rows, ids = folder / "rows.jsonl", folder / "ids.json"
    rows.write_text("".join(json.dumps(row) + "\n" for row in texts()))
    ids.write_text(json.dumps(pairs()))
    return {
        "setting": "default",
        "device": "cpu",
        "model": str(folder / "model"),
        "rows": str(rows),
        "tokens": str(ids),
        "cache": str(folder / "cache"),
        "output": str(folder / "output"),
        "steps": STEPS,
        "batch_size": BATCH_SIZE,
        "learning_rate": RATE,
        "beta": BETA,
        "flops": False,
    }


def main(python: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder / "model")
        _, report = side([python, str(HERE / "dpo_trl.py")], _job(folder), folder / "output")
    recorded = [{name: line[name] for name in LOGGED} for line in report["log"]]
    GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
