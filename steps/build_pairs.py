"""``build_pairs``: a checker's verdicts on sampled completions become preference pairs."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline import Metrics, Output, TemperError, step
from steps.data.jsonl import read_json_lines
from steps.data.parquet import write_rows
from steps.data.rows import Message, PreferenceRow
from steps.data.tables import PAIRS, to_record
from steps.evaluation.checkers import is_correct
from steps.kinds import Completions, Preferences


@dataclass(frozen=True)
class PairConfig:
    """Which pairs are made.

    Args:
        max_pairs: at most this many, prompts taking turns.
        shuffle_labels: swap chosen and rejected in half of the pairs, at random: the control that
            shows whether a gain comes from the preference and not from training as such.
    """

    max_pairs: int | None = None
    shuffle_labels: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_pairs is not None and self.max_pairs < 1:
            raise ValueError(f"max_pairs must be at least 1 or null, got {self.max_pairs}")


@step(makes=Preferences)
def build_pairs(
    out: Output, completions: Completions, config: PairConfig = PairConfig()
) -> Metrics:
    """Write ``train/pairs-*.parquet``: chosen is right, rejected wrong, by the rule-based checker.

    Raises:
        TemperError: no prompt has both a right and a wrong completion.
    """
    records = read_json_lines(completions / "completions.jsonl")
    rounds = [list(_pairs(record)) for record in records]
    deepest = max(map(len, rounds), default=0)
    in_turn = [pairs[turn] for turn in range(deepest) for pairs in rounds if turn < len(pairs)]
    kept = in_turn[: config.max_pairs]
    if not kept:
        raise TemperError(
            f"none of {len(records)} prompts has both a right and a wrong completion; sample more "
            "completions, at a higher temperature"
        )
    if config.shuffle_labels:
        swapped = set(random.Random(config.seed).sample(range(len(kept)), len(kept) // 2))
        kept = [_swap(pair) if i in swapped else pair for i, pair in enumerate(kept)]
    write_rows(out.path / "train" / "pairs-00000.parquet", PAIRS, map(to_record, kept))
    right = [is_correct(text, r["answer"]) for r in records for text in r["completions"]]
    return {
        "pairs": len(kept),
        "prompts_with_both": sum(map(bool, rounds)),
        "completions_right": sum(right) / len(right),
    }


def _pairs(record: Mapping[str, Any]) -> Iterator[PreferenceRow]:
    """The different right completions of a prompt, each with a different wrong one."""
    texts = dict.fromkeys(record["completions"])
    right = [text for text in texts if is_correct(text, record["answer"])]
    wrong = [text for text in texts if text and not is_correct(text, record["answer"])]
    for i, (chosen, rejected) in enumerate(zip(right * len(wrong), wrong, strict=False)):
        yield PreferenceRow(
            row=f"{record['row']}/{i}",
            prompt=tuple(record["prompt"]),
            chosen=(_answer(chosen),),
            rejected=(_answer(rejected),),
            tools=tuple(record["tools"]) if record.get("tools") else None,
            template_kwargs=record.get("template_kwargs"),
            score_chosen=1.0,
            score_rejected=0.0,
        )


def _answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _swap(pair: PreferenceRow) -> PreferenceRow:
    return replace(pair, chosen=pair.rejected, rejected=pair.chosen)
