"""Which examples a step sees.

The order of examples is a pure function of (seed, epoch), so the position in the data is nothing
but the step number: there is no iterator to save or restore.
"""

import math

import numpy as np


def batch_indices(num_examples: int, batch_size: int, step: int, seed: int) -> list[int]:
    """The examples of 0-based optimiser step `step`: a slice of its epoch's own permutation.

    The last batch of an epoch is as short as what is left; no batch mixes two epochs.
    """
    epoch, position = divmod(step, steps_per_epoch(num_examples, batch_size))
    order = np.random.default_rng([seed, epoch]).permutation(num_examples)
    return order[position * batch_size : (position + 1) * batch_size].tolist()


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Optimiser steps that see every example once."""
    return math.ceil(num_examples / batch_size)


def total_steps(num_examples: int, batch_size: int, epochs: float, max_steps: int | None) -> int:
    """Optimiser steps of a run: `epochs` passes rounded up, never more than `max_steps`."""
    steps = math.ceil(epochs * steps_per_epoch(num_examples, batch_size))
    return steps if max_steps is None else min(steps, max_steps)
