"""How far a policy is from its reference, by the policy's own samples, and how it writes.

For responses ``y`` sampled from the policy, the mean of ``log π(y) − log π_ref(y)`` is an unbiased
estimate of the Kullback-Leibler divergence per response, in nats.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from steps.evaluation.intervals import Interval, bootstrap, mean, proportion

_PHRASE = 4
"""Tokens of what counts as repeated."""


def divergence(drawn: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """``kl`` and ``kl_per_token`` of the records of `own_samples.score_own_samples`."""
    by_prompt: dict[str, list[tuple[float, int]]] = {}
    for one in drawn:
        ratio = one["logp"] - one["reference_logp"]
        by_prompt.setdefault(one["row"], []).append((ratio, one["tokens"]))
    ratios = [[ratio for ratio, _ in samples] for samples in by_prompt.values()]
    counts = [[count for _, count in samples] for samples in by_prompt.values()]
    return {"kl": sampled_kl(ratios), "kl_per_token": kl_per_token(ratios, counts)}


def repeated(ids: Sequence[int]) -> float:
    """The share of a text's 4-grams of tokens that stand earlier in it; 0 of a shorter text."""
    grams = [tuple(ids[at : at + _PHRASE]) for at in range(len(ids) - _PHRASE + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def writing(answers: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """Of sampled answers: ``sampled/ended``, the share that the model ended before the limit;
    ``sampled/tokens``, the mean length; ``sampled/repetition``, the mean of :func:`repeated`."""
    if not answers:
        return {}
    return {
        "sampled/ended": proportion(sum(a["ended"] for a in answers), len(answers)),
        "sampled/tokens": mean([a["tokens"] for a in answers]),
        "sampled/repetition": mean([a["repeated"] for a in answers]),
    }


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
