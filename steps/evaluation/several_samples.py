"""Right answers where a model is sampled several times for each prompt.

Samples of one prompt are alike: an easy prompt has many right ones. So intervals resample prompts,
each with all of its samples. Intervals that count every sample by itself are too narrow.
"""

from collections.abc import Sequence
from math import comb

import numpy as np

from steps.evaluation.intervals import Interval, bootstrap, mean_share, proportion

Marks = Sequence[Sequence[bool]]
"""For each prompt, whether each of its samples is right."""


def share_of_samples(marks: Marks) -> Interval:
    """The share of right ones among all samples.

    Raises:
        ValueError: there are no samples.
    """
    right, drawn = _counts(marks)
    if drawn.max(initial=0) <= 1:
        return proportion(int(right.sum()), int(drawn.sum()))
    shares = right / drawn
    if shares.min() == shares.max():
        return mean_share(shares.tolist())
    return bootstrap(len(marks), lambda chosen: right[chosen].sum(1) / drawn[chosen].sum(1))


def pass_at_k(marks: Marks) -> dict[str, Interval]:
    """``pass_at_K``: how likely one of K samples of a prompt is right, for K of 2, 4, 8, … and the
    number of samples of a prompt, the least of all; none if a prompt has only one.

    Of n samples with c right ones, 1 − C(n − c, K) / C(n, K) is unbiased (Chen et al. 2021,
    https://arxiv.org/abs/2107.03374).
    """
    right, drawn = (counts.tolist() for counts in _counts(marks))
    fewest = min(drawn, default=0)
    sizes = sorted({fewest, *(2**power for power in range(fewest.bit_length()))} - {0, 1})
    return {
        f"pass_at_{k}": mean_share([_passes(n, c, k) for n, c in zip(drawn, right, strict=True)])
        for k in sizes
    }


def _passes(drawn: int, right: int, k: int) -> float:
    return 1 - comb(drawn - right, k) / comb(drawn, k)


def _counts(marks: Marks) -> tuple[np.ndarray, np.ndarray]:
    """How many samples of each prompt are right, and how many there are; int64 [n] each."""
    right, drawn = [sum(of_prompt) for of_prompt in marks], list(map(len, marks))
    return np.array(right, dtype=np.int64), np.array(drawn, dtype=np.int64)
