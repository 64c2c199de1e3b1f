"""The KL divergence of a policy from its reference, estimated from the policy's own samples.

For responses ``y`` sampled from the policy, the mean of ``log π(y) − log π_ref(y)`` is an unbiased
estimate of the Kullback-Leibler divergence per response, in nats.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from steps.evaluation.intervals import Interval, bootstrap, mean


def sampled_kl(log_ratios: Sequence[Sequence[float]] | np.ndarray) -> Interval:
    """KL(π‖π_ref) in nats per response. The interval resamples prompts, as samples of one prompt
    are not independent; of a single prompt, it resamples the responses, and is of that prompt.

    Args:
        log_ratios: for each prompt, ``log π − log π_ref`` of the responses sampled for it.

    Raises:
        ValueError: there are no prompts.
    """
    return mean([float(np.mean(ratios)) for ratios in _resampled(log_ratios)])


def kl_per_token(
    log_ratios: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]
) -> Interval:
    """KL(π‖π_ref) in nats per token: the sum of all log-ratios over the number of all tokens. Its
    interval is as that of :func:`sampled_kl`."""
    sums = np.array([np.sum(ratios) for ratios in _resampled(log_ratios)], dtype=np.float64)
    lengths = np.array([np.sum(counts) for counts in _resampled(tokens)], dtype=np.float64)
    return bootstrap(len(sums), lambda chosen: sums[chosen].sum(1) / lengths[chosen].sum(1))


def _resampled(of_prompts: Sequence[Sequence[float]] | np.ndarray) -> Iterable[Any]:
    """The values of each prompt; of a single one, those of each response."""
    return of_prompts if len(of_prompts) != 1 else [[value] for value in of_prompts[0]]
