"""Evaluation on held-out examples during training, the best step, and early stopping.

The best step and the decision to stop are functions of the log, so a resumed run decides like an
uninterrupted one.
"""

import re
from collections.abc import Sequence

import torch

from steps.scoring.examples import TokenGroup
from steps.scoring.logps import TokenLogps
from steps.scoring.packing import lengths_of
from steps.scoring.scorer import Scorer
from steps.training.config import TrainConfig
from steps.training.metrics import StepMetrics, sum_shares
from steps.training.objectives import Objective
from steps.training.trainer import (
    DivergentLogps,
    GroupLosses,
    reading_aligned,
    reading_divergences,
    require_finite,
)

_DEFAULT_METRIC = "eval_loss"
_FALLS = re.compile(r"eval_((.*/)?\w*loss|(.*/)?loss/.*|(.*/)?kl(/.*)?)$")


@torch.no_grad()
def evaluate(scorer: Scorer, objective: Objective, config: TrainConfig) -> StepMetrics:
    """The loss and metrics of all examples as one batch, with the prefix `eval_`.

    Raises FloatingPointError, which names the examples, if a loss or a metric is not finite:
    comparisons with NaN are always false, so it would remain the best value for ever.
    """
    logps = _logps(scorer, objective.groups, config.batch_size)
    baseline = None
    if objective.aligned:
        baseline = _logps(reading_aligned(scorer), objective.groups, config.batch_size)
    elif objective.baseline_groups is objective.groups:
        baseline = logps
    elif objective.baseline_groups is not None:
        baseline = _logps(scorer, objective.baseline_groups, config.batch_size)
    if objective.diverges:
        divergences = _logps(reading_divergences(scorer), objective.groups, config.batch_size)
        logps = DivergentLogps(logps.tokens, logps.lengths, divergences.tokens)
    losses, metrics = _losses(objective, logps, baseline)
    shares = {"loss": losses, **metrics}
    require_finite(shares, objective.groups, "the held-out ")
    evaluated = sum_shares(shares)
    return {f"eval_{name}": value for name, value in evaluated.items()}


@torch.no_grad()
def require_metric(objective: Objective, config: TrainConfig) -> None:
    """Raise ValueError, which lists the metrics, if `config.keep_best` is not one of those that
    `evaluate` will give: before the steps of the first evaluation have been paid for."""
    others = objective.baseline_groups
    logps = _made_up(objective.groups, objective.width)
    if objective.diverges:
        logps = DivergentLogps(logps.tokens, logps.lengths, logps.tokens)
    _, metrics = _losses(objective, logps, None if others is None else _made_up(others))
    names = [f"eval_{name}" for name in ("loss", *metrics)]
    if _metric(config) not in names:
        raise ValueError(f"keep_best is {config.keep_best!r}; there is only {sorted(names)}")


def _losses(objective: Objective, logps: TokenLogps, baseline: TokenLogps | None) -> GroupLosses:
    """The losses and metrics of all examples as one batch."""
    everything = range(len(objective.groups))
    return objective.batch_loss(everything, baseline)(logps, torch.tensor(everything))


def _made_up(groups: Sequence[TokenGroup], width: int = 2) -> TokenLogps:
    """Logps of the responses as if all tokens were equally likely."""
    lengths = lengths_of(groups)
    return TokenLogps.of_values(torch.full((int(lengths.sum()), width), -1.0), lengths)


def best_step(log: Sequence[StepMetrics], config: TrainConfig) -> int | None:
    """The best step (1-based) by `config.keep_best`; the first one if values are equal.

    A loss or a divergence (`kl`), by its name, is best when lowest; other metrics when highest.
    """
    return None if config.keep_best is None else _best(log, _metric(config))


def has_stopped(log: Sequence[StepMetrics], config: TrainConfig) -> bool:
    """Whether the last `early_stop_patience` evaluations have all failed to improve the metric."""
    if config.early_stop_patience is None:
        return False
    best = _best(log, _metric(config)) or 0
    since = [record for record in log[best:] if _metric(config) in record]
    return len(since) >= config.early_stop_patience


def _best(log: Sequence[StepMetrics], metric: str) -> int | None:
    sign = -1 if _FALLS.match(metric) else 1
    # Equal counts of tokens give shares whose sums may differ in the last bits.
    values = {
        int(record["step"]): sign * float(f"{record[metric]:.12g}")
        for record in log
        if metric in record
    }
    return max(values, key=lambda step: values[step], default=None)


def _metric(config: TrainConfig) -> str:
    return config.keep_best or _DEFAULT_METRIC


def _logps(scorer: Scorer, groups: Sequence[TokenGroup], batch_size: int) -> TokenLogps:
    """The logps of all responses. A batch is prepared while the one before is scored."""
    futures = [
        scorer.logps(scorer.prepare(groups[start : start + batch_size]))
        for start in range(0, len(groups), batch_size)
    ]
    tokens = [scored for future in futures for scored in future.result().tokens]
    return TokenLogps.of_values(torch.cat(tokens), lengths_of(groups))
