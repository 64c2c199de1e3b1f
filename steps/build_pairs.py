"""``build_pairs``: make preference pairs from sampled completions that a checker judges."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import compress, zip_longest
from operator import not_
from typing import Any

from pipeline import Metrics, Output, TemperError, added_field, step
from steps.checking.boxed import is_correct, require_answers
from steps.data.rows.completions import read_completions
from steps.data.rows.parquet import write_rows
from steps.data.rows.rows import Message, PreferenceRow
from steps.kinds import Completions, Preferences
from steps.shared.checks import require, require_count


@dataclass(frozen=True)
class PairConfig:
    """Which pairs are made.

    Args:
        keep_cut: also use completions that were cut at the token limit. As a response, such a
            completion gets an end that the model never sampled, and training learns that end.
        max_pairs: the most training pairs. Each prompt gives its first pair before any gives a
            second one.
        shuffle_labels: swap chosen and rejected in a random half of the pairs. This control
            experiment shows whether a gain comes from the preferences or from training as such.
        test_fraction: the share of prompts whose pairs are held out. Their labels are never
            swapped.
    """

    max_pairs: int | None = None
    shuffle_labels: bool = False
    seed: int = 0
    keep_cut: bool = False
    test_fraction: float = added_field(0.0, before=0.0)

    def __post_init__(self) -> None:
        require_count(self, "max_pairs", or_null=True)
        require(type(self.seed) is int, "seed must be a whole number", self.seed)
        if not 0 <= self.test_fraction < 1:
            raise ValueError(f"test_fraction must be in [0, 1), got {self.test_fraction}")


@step(makes=Preferences)
def build_pairs(
    out: Output, completions: Completions, config: PairConfig = PairConfig()
) -> Metrics:
    """Write ``train/pairs-*.parquet``, and ``test/pairs-*.parquet`` if any prompts are held out.

    The rule-based checker finds the chosen response right and the rejected one wrong.

    Raises:
        TemperError: no prompt for training, or none of those to hold out, has both a right and a
            wrong completion.
        ValueError: a prompt has no answer, or a record is not as `read_completions` reads it.
    """
    from steps.data.load.splits import in_test_split
    from steps.data.rows.tables import PAIRS, to_record

    records = read_completions(completions, "prompt", "finish")
    require_answers(records)
    rounds = [list(_pairs(record, config.keep_cut)) for record in records]
    held = [in_test_split(record["prompt"], config.test_fraction) for record in records]
    kept = _in_turn(compress(rounds, map(not_, held)))[: config.max_pairs]
    if not kept and any(rounds):
        raise TemperError(
            f"every prompt with a right and a wrong completion ({sum(map(bool, rounds))}) is held "
            f"out by test_fraction={config.test_fraction}; lower it, or sample from more prompts"
        )
    if not kept:
        raise TemperError(
            f"none of {len(records)} prompts has both a right and a wrong completion that ended; "
            "sample more completions, at a higher temperature, or let them be longer"
        )
    held_out = _in_turn(compress(rounds, held))
    if config.test_fraction and not held_out:
        raise TemperError(
            f"PairConfig.test_fraction={config.test_fraction} holds out "
            f"none of {sum(map(bool, rounds))} prompts with a right and a wrong completion; raise "
            "it, or sample from more prompts"
        )
    if config.shuffle_labels:
        swapped = set(random.Random(config.seed).sample(range(len(kept)), len(kept) // 2))
        kept = [_swap(pair) if i in swapped else pair for i, pair in enumerate(kept)]
    write_rows(out.path / "train" / "pairs-00000.parquet", PAIRS, map(to_record, kept))
    if held_out:
        write_rows(out.path / "test" / "pairs-00000.parquet", PAIRS, map(to_record, held_out))
    right = [is_correct(text, r["answer"]) for r in records for text in r["completions"]]
    cut = sum(finish != "stop" for record in records for finish in record["finish"])
    return {
        "completions_cut": cut,
        "pairs": len(kept),
        **({"held_out_pairs": len(held_out)} if config.test_fraction else {}),
        "prompts_with_both": sum(map(bool, rounds)),
        "completions_right": sum(right) / len(right),
    }


def _in_turn(rounds: Iterable[list[PreferenceRow]]) -> list[PreferenceRow]:
    """The first pair of every prompt, then the second pair of every prompt that has two, ..."""
    in_turn = zip_longest(*rounds)
    return [pair for turn in in_turn for pair in turn if pair is not None]


def _pairs(record: Mapping[str, Any], keep_cut: bool) -> Iterator[PreferenceRow]:
    """Pair each distinct right completion of a prompt with another distinct wrong one."""
    ended = zip(record["completions"], record["finish"], strict=True)
    texts = dict.fromkeys(text for text, finish in ended if keep_cut or finish == "stop")
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
