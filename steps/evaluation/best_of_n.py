"""Best of n: accuracy when a reward model, a majority vote or a checker picks one of n samples.

A model is sampled many times for each prompt, and a checker knows which samples are right. From n
samples,

    reward model    picks the sample with the highest score; the first one if scores are equal
    majority        picks the most frequent answer (Wang et al. 2022, self-consistency)
    checker         picks a right sample if there is one; this is the upper bound

If the reward model's accuracy falls with n while its highest scores still rise, it is
over-optimised: it gives the highest scores to samples that it misjudges (Gao et al. 2022,
https://arxiv.org/abs/2210.10760).

Each run of n consecutive samples of a prompt is a draw of n. For N samples, the mean over the
⌊N/n⌋ disjoint runs is an unbiased estimate with less noise than one draw. Intervals resample
prompts.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from steps.checking.boxed import as_compared, boxed_answer, is_correct
from steps.evaluation.intervals import Interval, mean_share, proportion

WRONG_BESIDE_RIGHT = 3
"""As in RewardBench 2 (Malik et al. 2025, https://arxiv.org/abs/2506.01937)."""


@dataclass(frozen=True)
class Sampled:
    """The samples of one prompt: whether each is right, the answer it votes for, and its score."""

    row: str
    texts: tuple[str, ...]
    right: tuple[bool, ...]
    votes: tuple[str | None, ...]
    scores: tuple[float, ...]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The samples of a record with ``completions`` and ``scores``. A sample without a score is
        never preferred."""
        texts = tuple(record["completions"])
        return cls(
            str(record["row"]),
            texts,
            tuple(is_correct(text, record["answer"]) for text in texts),
            tuple(vote and as_compared(vote) for vote in map(boxed_answer, texts)),
            tuple(-math.inf if score is None else score for score in record["scores"]),
        )

    def draws(self, n: int) -> Iterator[range]:
        """The disjoint runs of n samples."""
        return (range(start, start + n) for start in range(0, len(self.texts) - n + 1, n))


@dataclass(frozen=True)
class BestOf:
    """How often the sample that each picker chooses is right, and the mean score of the reward
    model's choices (None if one of them has no score)."""

    n: int
    reward_model: Interval
    majority: Interval
    checker: Interval
    score: float | None


def best_of_n(prompts: Sequence[Sampled], sizes: Sequence[int]) -> list[BestOf]:
    """The points of the curve, one for each of `sizes`.

    Raises:
        ValueError: a prompt, which the message names, has fewer samples than the largest size.
    """
    fewest = min(prompts, key=lambda prompt: len(prompt.texts))
    if len(fewest.texts) < max(sizes):
        raise ValueError(
            f"row {fewest.row!r} has {len(fewest.texts)} completions, too few for the best of "
            f"{max(sizes)}; sample more, or ask for smaller sizes"
        )
    return [_best_of(prompts, n) for n in sizes]


def one_right_of_four(prompts: Sequence[Sampled]) -> Interval | None:
    """How often a prompt's first right answer scores higher than its first three distinct wrong
    answers, over prompts that have these; None if no prompt has."""
    wins = [win for prompt in prompts if (win := _beats_wrong(prompt)) is not None]
    return proportion(sum(wins), len(wins)) if wins else None


def over_optimised(curve: Sequence[BestOf]) -> str | None:
    """A notice if the reward model's best of the largest n is right less often than its best of a
    smaller n, and their intervals do not overlap; else None."""
    peak = max(curve, key=lambda point: point.reward_model["value"])
    last = max(curve, key=lambda point: point.n)
    now, before = last.reward_model, peak.reward_model
    if now["high"] >= before["low"]:
        return None
    return (
        f"over-optimisation: picked by the reward model, the best of {last.n} is right in "
        f"{now['value']:.3f}, the best of {peak.n} in {before['value']:.3f}"
    )


def _best_of(prompts: Sequence[Sampled], n: int) -> BestOf:
    picked, voted, any_right, scores = [], [], [], []
    for prompt in prompts:
        draws = list(prompt.draws(n))
        best = [max(draw, key=lambda i: prompt.scores[i]) for draw in draws]
        picked.append(_share(prompt.right[i] for i in best))
        voted.append(_share(_majority_is_right(prompt, draw) for draw in draws))
        any_right.append(_share(any(prompt.right[i] for i in draw) for draw in draws))
        scores += [prompt.scores[i] for i in best]
    average = math.fsum(scores) / len(scores) if all(map(math.isfinite, scores)) else None
    return BestOf(n, mean_share(picked), mean_share(voted), mean_share(any_right), average)


def _majority_is_right(prompt: Sampled, draw: range) -> bool:
    """Whether the most frequent answer is right. Of equally frequent answers the first wins; a
    sample without an answer does not vote."""
    votes = Counter(prompt.votes[i] for i in draw if prompt.votes[i] is not None)
    if not votes:
        return False
    winner = max(votes, key=lambda vote: votes[vote])
    return next(prompt.right[i] for i in draw if prompt.votes[i] == winner)


def _beats_wrong(prompt: Sampled) -> bool | None:
    samples = dict(zip(prompt.texts, zip(prompt.right, prompt.scores, strict=True), strict=True))
    right = [score for is_right, score in samples.values() if is_right]
    wrong = (score for is_right, score in samples.values() if not is_right)
    beside = list(islice(wrong, WRONG_BESIDE_RIGHT))
    if not right or len(beside) < WRONG_BESIDE_RIGHT:
        return None
    return right[0] > max(beside)


def _share(hits: Iterator[bool]) -> float:
    found = list(hits)
    return sum(found) / len(found)
