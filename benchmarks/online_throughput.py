"""Online training by Temper beside TRL's `GRPOTrainer`: tokens per CPU second of whole iterations.

    python benchmarks/online_throughput.py --trl PYTHON                    minutes
    python benchmarks/online_throughput.py --trl PYTHON --rounds 1 --iterations 3    does it work?

PYTHON is an interpreter that can import trl. Every sample is a process of its own with one thread.
An iteration samples 8 completions of each of 64 prompts, asks for their rewards, and makes one
update with GRPO's loss. All contenders have the same Llama with random weights (225k parameters),
the same prompts, float32, and the same reward: whether a digit is in the text. A prompt has 13
tokens, and 18 more for each of `--shots` solved problems before its question. A completion ends
with the end token, or at the most tokens of `--tokens`: with random weights most are that long. A
model of `grpo_arithmetic` ends its answers itself (`--model`, a folder in a store).

A rate is the completion tokens of all iterations but the first, by the CPU seconds of the process
and its children from the end of the first iteration to the end of the last. So it contains neither
imports nor what happens once.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.measuring import side, table

HERE = Path(__file__).parent
TEMPER = "Temper"
LEAN = {"gradient_checkpointing": False}
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "TRL, default": ("trl", {"settings": {}, "rows_per_forward": 8}),
    "TRL, lean": ("trl", {"settings": LEAN, "rows_per_forward": None}),
    TEMPER: ("temper", {}),
}


def write_inputs(folder: Path, longest: int, shots: int, model: Path | None = None) -> None:
    """The model's folder, of random weights or a copy of `model`, and the prompts as each contender
    reads them; every prompt begins with `shots` solved problems."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from steps.data.rows.arithmetic import (
        build_tokenizer,
        demonstrations,
        sample_problems,
        write_tokenizer,
    )
    from steps.data.rows.parquet import write_rows
    from steps.data.rows.tables import PROMPTS, to_record

    tokenizer: Any = build_tokenizer()
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        max_position_embeddings=longest + 32 * (shots + 1),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shape,
    )
    if model is None:
        LlamaForCausalLM(config).save_pretrained(folder / "model")
        write_tokenizer(folder / "model")
    else:
        shutil.copytree(model, folder / "model")
    problems = sample_problems(0)[0]
    solved = [message for row in demonstrations(problems[:shots], 0) for message in row.messages]
    asked = [problem.prompt for problem in problems[shots:]]
    rows = [replace(row, prompt=(*solved, *row.prompt)) for row in asked]
    write_rows(folder / "rows" / "prompts-00000.parquet", PROMPTS, map(to_record, rows))
    lines = (json.dumps({"prompt": row.prompt}) for row in rows)
    (folder / "prompts.json").write_text("\n".join(lines))


def rate(marks: list[dict[str, float]]) -> float:
    """Completion tokens per CPU second."""
    tokens = sum(mark["tokens"] for mark in marks[1:])
    return tokens / (marks[-1]["cpu"] - marks[0]["cpu"])


def main(
    trl: Annotated[str | None, typer.Option(help="An interpreter that can import trl.")] = None,
    tokens: Annotated[int, typer.Option(help="The most tokens of a completion.")] = 24,
    shots: Annotated[int, typer.Option(help="Solved problems before each question.")] = 0,
    iterations: Annotated[int, typer.Option(help="Of a sample.", min=2)] = 12,
    rounds: Annotated[int, typer.Option(help="Turns that each contender takes.")] = 3,
    model: Annotated[Path | None, typer.Option(help="Of the arithmetic task.")] = None,
) -> None:
    """Measure whole iterations of online training."""
    job = {
        "prompts": 64,
        "completions": 8,
        "tokens": tokens,
        "iterations": iterations,
        "learning_rate": 1e-6,
        "pattern": "7",
        "tokens_per_forward": 16384,
    }
    contenders = [name for name in CONTENDERS if trl or name == TEMPER]
    taken: dict[str, list[list[dict[str, float]]]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory(prefix="temper-online-") as temporary:
        folder = Path(temporary)
        write_inputs(folder, tokens, shots, model)
        named = {"model": "model", "rows": "rows", "prompts_json": "prompts.json"}
        job |= {name: str(folder / file) for name, file in named.items()}
        for number in range(rounds):
            for name in contenders:
                kind, settings = CONTENDERS[name]
                python = trl if trl and kind == "trl" else sys.executable
                command = [python, str(HERE / "online_sides.py"), kind]
                output = folder / f"{number}-{contenders.index(name)}"
                taken[name].append(side(command, {**job, **settings}, output)[1])
    show(taken)


def show(taken: dict[str, list[list[dict[str, float]]]]) -> None:
    title = "Completion tokens per CPU second of whole iterations, medians"
    headings = "tokens / CPU s", "Temper's ratio", "tokens of one", "mean reward"
    rated = table(title, "", *headings)
    for name, samples in taken.items():
        ratios = [
            rate(ours) / rate(theirs) for ours, theirs in zip(taken[TEMPER], samples, strict=True)
        ]
        marks = [mark for of_one in samples for mark in of_one]
        length = sum(mark["tokens"] for mark in marks) / len(marks) / 512
        reward = sum(mark["reward"] for mark in marks) / len(marks)
        rates = median(map(rate, samples))
        figures = f"{rates:,.0f}", f"{median(ratios):.2f}", f"{length:.1f}", f"{reward:.3f}"
        rated.add_row(name, *figures)
    Console().print(rated)


if __name__ == "__main__":
    typer.run(main)
