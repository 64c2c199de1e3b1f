"""``make_arithmetic``: a task whose answers can be checked, with mixed demonstrations."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pipeline import Metrics, Output, step
from steps.data.arithmetic import Problem, demonstrations, sample_problems
from steps.data.jsonl import write_json_lines
from steps.data.parquet import CONVERSATIONS, write_rows
from steps.kinds import VerifiableTask


@step(makes=VerifiableTask)
def make_arithmetic(out: Output, train: int = 1100, test: int = 500, seed: int = 0) -> Metrics:
    """Write ``sft/conversations.parquet`` and ``train/`` and ``test/prompts.jsonl``.

    See :mod:`steps.data.arithmetic` for the task; held-out problems are never shown in training.
    """
    problems, held_out = sample_problems(seed, train, test)
    shown = demonstrations(problems, seed)
    write_rows(out.path / "sft" / "conversations.parquet", CONVERSATIONS, map(asdict, shown))
    _write_prompts(out.path / "train", problems)
    _write_prompts(out.path / "test", held_out)
    right = sum(
        demonstration.response == rf"\boxed{{{problem.answer}}}"
        for demonstration, problem in zip(shown, problems, strict=True)
    )
    return {"train": train, "test": test, "demonstrations_right": right}


def _write_prompts(folder: Path, problems: Sequence[Problem]) -> None:
    folder.mkdir()
    records = ({"row": p.row, "prompt": list(p.prompt), "answer": p.answer} for p in problems)
    write_json_lines(folder / "prompts.jsonl", records)
