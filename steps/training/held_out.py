"""Held-out examples during training: how they fare, which step was best, and when to stop.

What is best, and whether training is over, are functions of the log, so a resumed run decides as
the uninterrupted one did.
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

_DEFAULT_METRIC = "eval_loss"
_FALLS = re.compile(r"eval_(\w*loss(/.*)?|kl)$")


@torch.no_grad()
def evaluate(scorer: Scorer, objective: Objective, config: TrainConfig) -> StepMetrics:
    """The objective over all of its examples as one batch, each name with the prefix `eval_`.

    Raises ValueError, naming what there is, if `config.keep_best` is not among it, and
    FloatingPointError naming examples whose loss is not finite: nothing is better or worse than
    that, so it would stay the best there ever was.
    """
    logps = _logps(scorer, objective.groups, config.batch_size)
    baseline = None
    if objective.baseline_groups is objective.groups:
        baseline = logps
    elif objective.baseline_groups is not None:
        baseline = _logps(scorer, objective.baseline_groups, config.batch_size)
    everything = range(len(objective.groups))
    loss = objective.batch_loss(everything, baseline)
    losses, metrics = loss(logps, torch.tensor(everything))
    if off := [objective.groups[i].row for i in (~losses.isfinite()).nonzero()[:, 0].tolist()]:
        raise FloatingPointError(f"the loss of the held-out {off[:8]} is not finite")
    evaluated = sum_shares({"loss": losses, **metrics})
    result: StepMetrics = {f"eval_{name}": value for name, value in evaluated.items()}
    if _metric(config) not in result:
        raise ValueError(f"keep_best is {config.keep_best!r}; there is only {sorted(result)}")
    return result


def best_step(log: Sequence[StepMetrics], config: TrainConfig) -> int | None:
    """The step (1-based) whose weights `config.keep_best` wants kept; of equals, the first.

    What is named a loss, or a divergence (`kl`), is best when lowest, any other when highest.
    """
    return None if config.keep_best is None else _best(log, _metric(config))


def has_stopped(log: Sequence[StepMetrics], config: TrainConfig) -> bool:
    """Whether as many evaluations in a row have bettered nothing as patience is had for."""
    if config.early_stop_patience is None:
        return False
    best = _best(log, _metric(config)) or 0
    since = [record for record in log[best:] if _metric(config) in record]
    return len(since) >= config.early_stop_patience


def _best(log: Sequence[StepMetrics], metric: str) -> int | None:
    sign = -1 if _FALLS.match(metric) else 1
    values = {int(record["step"]): sign * record[metric] for record in log if metric in record}
    return max(values, key=lambda step: values[step], default=None)


def _metric(config: TrainConfig) -> str:
    return config.keep_best or _DEFAULT_METRIC


def _logps(scorer: Scorer, groups: Sequence[TokenGroup], batch_size: int) -> TokenLogps:
    """Of every response of `groups`; the next batch is prepared while one is scored."""
    futures = [
        scorer.logps(scorer.prepare(groups[start : start + batch_size]))
        for start in range(0, len(groups), batch_size)
    ]
    tokens = [scored for future in futures for scored in future.result().tokens]
    return TokenLogps(torch.cat(tokens).double(), lengths_of(groups))
