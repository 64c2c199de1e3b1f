"""Best of n: the answer that is picked from n samples, by a reward model, by a vote, by a checker.

A model is sampled many times for each prompt, and a rule says which samples are right. Of n of them

    reward model    picks the one with the highest score; of equals the first
    majority        picks the answer that most samples give (Wang et al. 2022, self-consistency)
    checker         picks a right one if there is any: what nobody can beat

Where the reward model's curve falls while the scores of what it picks still rise, it is
over-optimised: what it scores highest is what it is wrong about (Gao et al. 2022,
https://arxiv.org/abs/2210.10760).

Of a prompt with N samples, each run of n consecutive ones is a draw of n: the mean over the ⌊N/n⌋
disjoint runs is an unbiased estimate with less noise than one draw. Prompts are the units of the
intervals.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from steps.checking.boxed import boxed_answer, is_correct
from steps.evaluation.intervals import Interval, mean, proportion

WRONG_BESIDE_RIGHT = 3
"""As in RewardBench 2 (Malik et al. 2025, https://arxiv.org/abs/2506.01937)."""


@dataclass(frozen=True)
class Sampled:
    """The samples of one prompt: whether each is right, what it votes for, and its score."""

    row: str
    texts: tuple[str, ...]
    right: tuple[bool, ...]
    votes: tuple[str | None, ...]
    scores: tuple[float, ...]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """A record of completions with ``scores``. A sample without a score is never preferred."""
        texts = tuple(record["completions"])
        return cls(
            str(record["row"]),
            texts,
            tuple(is_correct(text, record["answer"]) for text in texts),
            tuple(map(boxed_answer, texts)),
            tuple(-math.inf if score is None else score for score in record["scores"]),
        )

    def draws(self, n: int) -> Iterator[range]:
        """The disjoint runs of n samples."""
        return (range(start, start + n) for start in range(0, len(self.texts) - n + 1, n))


@dataclass(frozen=True)
class BestOf:
    """How often what is picked from n samples is right, and the mean score of what the reward
    model picks (None if a picked one has no score)."""

    n: int
    reward_model: Interval
    majority: Interval
    checker: Interval
    score: float | None


def best_of_n(prompts: Sequence[Sampled], sizes: Sequence[int]) -> list[BestOf]:
    """The curves at each of `sizes`.

    Raises:
        ValueError: naming a prompt with fewer samples than the largest size.
    """
    fewest = min(prompts, key=lambda prompt: len(prompt.texts))
    if len(fewest.texts) < max(sizes):
        raise ValueError(
            f"row {fewest.row!r} has {len(fewest.texts)} completions, too few for the best of "
            f"{max(sizes)}; sample more, or ask for smaller sizes"
        )
    return [_best_of(prompts, n) for n in sizes]


def one_right_of_four(prompts: Sequence[Sampled]) -> Interval | None:
    """How often the first right answer of a prompt has a higher score than each of its first three
    different wrong ones, over the prompts that have so many; None if there are none."""
    wins = [win for prompt in prompts if (win := _beats_wrong(prompt)) is not None]
    return proportion(sum(wins), len(wins)) if wins else None


def over_optimised(curve: Sequence[BestOf]) -> str | None:
    """Says so if the reward model's best of the most samples is right less often than its best of
    fewer, by more than the two intervals."""
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
    return BestOf(n, mean(picked), mean(voted), mean(any_right), average)


def _majority_is_right(prompt: Sampled, draw: range) -> bool:
    """Of equally frequent answers the first counts; a sample that states none does not vote."""
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
