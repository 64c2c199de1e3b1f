"""How far a policy has moved from its reference, from what the policy itself writes.

With responses ``y`` drawn from the policy, the mean of ``log π(y) − log π_ref(y)`` is an unbiased
estimate of the Kullback-Leibler divergence of whole responses, in nats.
"""

from collections.abc import Sequence

import numpy as np

from steps.evaluation.intervals import Interval, bootstrap, mean


def sampled_kl(log_ratios: Sequence[Sequence[float]] | np.ndarray, seed: int = 0) -> Interval:
    """KL(π‖π_ref) in nats a response; the interval is over prompts, whose samples belong together.

    Args:
        log_ratios: of each prompt, ``log π − log π_ref`` of the responses drawn for it.

    Raises:
        ValueError: there are none.
    """
    return mean([float(np.mean(ratios)) for ratios in log_ratios], seed)


def kl_per_token(
    log_ratios: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]
) -> Interval:
    """The same in nats a token: all that was drawn, over all its tokens."""
    sums = np.array([np.sum(ratios) for ratios in log_ratios], dtype=np.float64)
    lengths = np.array([np.sum(counts) for counts in tokens], dtype=np.float64)
    return bootstrap(len(sums), lambda chosen: float(sums[chosen].sum() / lengths[chosen].sum()))
