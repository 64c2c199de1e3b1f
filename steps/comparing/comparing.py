"""Comparisons of two models' answers to the same prompts.

A judge is shown each pair of answers in both orders, since judges prefer a place (Zheng et al.
2023, section 3.4). An answer is better if it is so in both; if the two verdicts contradict each
other, the answers are equal. So are equal texts, about which nobody is asked.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from steps.checking.compared import Compared, PairJudge
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Judgement, Verdict
from steps.shared.counts import share_of


class Outcome(StrEnum):
    """Of a comparison, for the model that is compared; none without a verdict."""

    win = "win"
    tie = "tie"
    loss = "loss"
    none = "none"


_SCORES = {Outcome.win: 1.0, Outcome.tie: 0.5, Outcome.loss: 0.0}


@dataclass(frozen=True)
class Comparison:
    """Two answers to a prompt, and the verdicts on them.

    row: the id of the prompt's row; `completion` counts its completions from 0.
    text, beside: the answers of the model and of the one that it is compared with.
    verdicts: with `text` shown first, and shown second; none for equal texts.
    """

    row: str
    completion: int
    prompt: Sequence[Mapping[str, Any]]
    text: str
    beside: str
    verdicts: tuple[Judgement, ...] = ()

    @property
    def outcome(self) -> Outcome:
        if self.text == self.beside:
            return Outcome.tie
        first, second = (judgement.verdict for judgement in self.verdicts)
        if Verdict.none in (first, second):
            return Outcome.none
        if first is second:  # the same place, whoever stands there
            return Outcome.tie
        return Outcome.win if first is Verdict.right else Outcome.loss

    def record(self) -> dict[str, Any]:
        """What is stored of it: for each verdict its reason, too."""
        return {
            "row": self.row,
            "completion": self.completion,
            "prompt": list(self.prompt),
            "text": self.text,
            "beside": self.beside,
            "outcome": self.outcome,
            "verdicts": [vars(judgement) for judgement in self.verdicts],
        }


def paired(
    answered: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]]
) -> list[Comparison]:
    """The answers of two ``completions.jsonl``, side by side: the first with the first, and so on.

    Raises:
        ValueError: a row, its prompt or its number of completions differs.
    """
    others = {record["row"]: record for record in beside}
    if len(answered) != len(others):
        raise ValueError(
            f"{len(answered)} prompts were answered by one model and {len(others)} by the other; "
            "sample both from the same prompts"
        )
    found: list[Comparison] = []
    for record in answered:
        row, prompt = record["row"], record["prompt"]
        other = others.get(row)
        if other is None or other["prompt"] != prompt:
            raise ValueError(
                f"row {row!r} is not the same prompt for both models; sample both from the same "
                "prompts"
            )
        texts = record["completions"], other["completions"]
        if len(texts[0]) != len(texts[1]):
            raise ValueError(
                f"row {row!r} has {len(texts[0])} completions of one model and {len(texts[1])} of "
                "the other; sample both with the same num_completions"
            )
        pairs = enumerate(zip(*texts, strict=True))
        found += [Comparison(row, number, prompt, *both) for number, both in pairs]
    return found


def compare(
    comparisons: Sequence[Comparison],
    judge: PairJudge,
    config: JudgeConfig,
    scratch: Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Comparison]:
    """The comparisons with the judge's verdicts.

    Args:
        scratch: where verdicts of a costly judge are kept, for a run that goes on.

    Raises:
        ValueError: more than `config.most_without` of the comparisons have no verdict.
    """
    from steps.checking.judges import Judges  # here: plans that offer judges read this module

    asked = [
        Compared(*texts, c.prompt)
        for c in comparisons
        if c.text != c.beside
        for texts in ((c.text, c.beside), (c.beside, c.text))
    ]
    # A comparison has two judgements, so of twice as many none a share too large is certain.
    most = 2 * share_of(config.most_without, len(comparisons)) / max(1, len(asked))
    with Judges(judge, config.processes, config.time_limit, scratch, min(1.0, most)) as judges:
        given = iter(judges.judge(asked, on_progress))
    judged = [
        c if c.text == c.beside else replace(c, verdicts=(next(given), next(given)))
        for c in comparisons
    ]
    _require_verdicts(judged, config.most_without)
    return judged


def _require_verdicts(comparisons: Sequence[Comparison], most_without: float) -> None:
    without = [c for c in comparisons if c.outcome is Outcome.none]
    if len(without) > share_of(most_without, len(comparisons)):
        reasons = Counter(
            judgement.reason
            for c in without
            for judgement in c.verdicts
            if judgement.verdict is Verdict.none
        )
        why, count = reasons.most_common(1)[0]
        raise ValueError(
            f"{len(without)} of {len(comparisons)} comparisons have no verdict, {count} verdicts "
            f"because: {why}; mend the judge and run again, which asks for what is missing; or "
            "raise most_without, which asks for all verdicts again"
        )


def scores(comparisons: Sequence[Comparison]) -> list[float]:
    """For each row that has a verdict, the mean over its completions: 1 for a win, 0.5 for a tie,
    0 for a loss."""
    by_row: dict[str, list[float]] = {}
    for comparison in comparisons:
        if (score := _SCORES.get(comparison.outcome)) is not None:
            by_row.setdefault(comparison.row, []).append(score)
    return [sum(found) / len(found) for found in by_row.values()]


def counts(comparisons: Sequence[Comparison]) -> dict[str, int | float]:
    """How many wins, ties, losses and comparisons without a verdict there are, and two signs of a
    judge's bias: the shares of its verdicts for the answer shown first, and for the longer one."""
    outcomes = Counter(comparison.outcome for comparison in comparisons)
    first = [j.verdict for c in comparisons for j in c.verdicts if j.verdict is not Verdict.none]
    longer = [
        (len(c.text) > len(c.beside)) is (c.outcome is Outcome.win)
        for c in comparisons
        if c.outcome in (Outcome.win, Outcome.loss) and len(c.text) != len(c.beside)
    ]
    return {
        "comparisons": len(comparisons),
        "wins": outcomes[Outcome.win],
        "ties": outcomes[Outcome.tie],
        "losses": outcomes[Outcome.loss],
        "no_verdict": outcomes[Outcome.none],
        **({"shown_first": first.count(Verdict.right) / len(first)} if first else {}),
        **({"longer": sum(longer) / len(longer)} if longer else {}),
    }
