"""A step's examples, learning rate and noise, as functions of its number.

The order of examples is a pure function of (seed, epoch), so the step's number gives the position
in the data: there is no iterator to save or restore.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping

from steps.shared.counts import share_of
from steps.training.config import OptimizerConfig, Schedule

Later = Mapping[int, int]
"""Sizes of batches by the number of steps after which they begin; see `TrainConfig.batch_sizes`."""
NONE: Later = {}


def batch_indices(
    num_examples: int, batch_size: int, step: int, seed: int, later: Later = NONE
) -> list[int]:
    """The examples of the 0-based optimiser step `step`: a slice of its epoch's permutation.

    The last batch of an epoch may be shorter; no batch mixes two epochs.
    """
    import numpy as np  # not at the top: plans import this module for the lengths of runs

    epoch, start, size = place(num_examples, batch_size, step, later)
    order = np.random.default_rng([seed, epoch]).permutation(num_examples)
    return order[start : start + size].tolist()


def place(
    num_examples: int, batch_size: int, step: int, later: Later = NONE
) -> tuple[int, int, int]:
    """The epoch of a 0-based step, where its batch begins in the epoch's order, and the size that
    batches have then."""
    epoch = start = began = 0
    for begins, size in sorted(later.items()):
        if begins <= step:
            epoch, start = _after(num_examples, batch_size, epoch, start, begins - began)
            began, batch_size = begins, size
    return *_after(num_examples, batch_size, epoch, start, step - began), batch_size


def _after(num_examples: int, size: int, epoch: int, start: int, steps: int) -> tuple[int, int]:
    """Epoch and start of the batch so many steps after that of `epoch` which begins at `start`."""
    in_epoch = math.ceil((num_examples - start) / size)
    if steps < in_epoch:
        return epoch, start + steps * size
    more, position = divmod(steps - in_epoch, steps_per_epoch(num_examples, size))
    return epoch + 1 + more, position * size


def epochs_of(num_examples: int, batch_size: int, steps: int, later: Later = NONE) -> float:
    """The passes over the examples in so many steps; with one size the share of an epoch's steps,
    else of its examples."""
    if not later:
        return steps / steps_per_epoch(num_examples, batch_size)
    epoch, start, _ = place(num_examples, batch_size, steps, later)
    return epoch + start / num_examples


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """The number of optimiser steps in one pass over the examples."""
    return math.ceil(num_examples / batch_size)


def total_steps(
    num_examples: int,
    batch_size: int,
    epochs: float,
    max_steps: int | None,
    later: Later = NONE,
) -> int:
    """The optimiser steps of a run: those of `epochs` passes, rounded up, at most `max_steps`."""
    steps = math.ceil(share_of(epochs, steps_per_epoch(num_examples, batch_size)))
    if later:
        wanted, most = share_of(epochs, num_examples), math.ceil(epochs) * num_examples

        def seen(steps: int) -> int:
            epoch, start, _ = place(num_examples, batch_size, steps, later)
            return epoch * num_examples + start

        steps = bisect_left(range(most), wanted, key=seen)
    return steps if max_steps is None else min(steps, max_steps)


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """The learning rate of the 0-based `step` of `total_steps`.

    In a warm-up over w steps, the rate is (step + 1) / (w + 1) of the full rate; step w is the
    first one with the full rate. With `warmup_from_zero`, it is step / w. The schedules then fall
    from the full rate to `final_fraction` of it at step `total_steps`, which is no longer executed,
    so no step after a warm-up has a rate of zero. `wsd` (warm-up, stable, decay: Hu et al. 2024)
    falls linearly over the last `decay_fraction` of all steps.
    """
    warmup = warmup_steps(config, total_steps)
    if step < warmup and config.warmup_from_zero:
        return config.learning_rate * step / warmup
    if step < warmup:
        return config.learning_rate * (step + 1) / (warmup + 1)
    if config.schedule is Schedule.constant:  # goes on behind the steps of a horizon
        return config.learning_rate
    falling = total_steps - warmup
    remaining = (total_steps - step) / falling
    match config.schedule:
        case Schedule.linear:
            height = remaining
        case Schedule.cosine:
            height = (1 - math.cos(math.pi * remaining)) / 2
        case Schedule.wsd:
            decay = min(falling, math.ceil(share_of(config.decay_fraction, total_steps)))
            height = min(1.0, (total_steps - step) / decay)
    return config.learning_rate * (config.final_fraction + (1 - config.final_fraction) * height)


def warmup_steps(config: OptimizerConfig, total_steps: int) -> int:
    """The steps of a run over which the learning rate rises."""
    if config.warmup_fraction:
        return math.ceil(share_of(config.warmup_fraction, total_steps))
    return config.warmup_steps


def noise(seed: int, step: int) -> int:
    """The seed of dropout in the 0-based `step`."""
    import numpy as np

    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0])
