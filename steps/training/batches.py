"""Which examples a step sees, and how they are laid out for one forward.

The order of examples is a pure function of (seed, epoch), so the position in the data is nothing
but the step number: there is no iterator to save or restore.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from steps.training.examples import TokenSequence

IGNORED = -100  # cross_entropy's own default for "nothing to predict here"


@dataclass(frozen=True)
class PaddedBatch:
    """Sequences of one forward, padded on the right.

    input_ids: int64 [B, L].
    targets: int64 [B, L]; the token to predict *from* each position, IGNORED unless that token
        is a scored one of the response.
    first_target: the earliest position that any sequence predicts from.
    """

    input_ids: Tensor
    targets: Tensor
    first_target: int

    def to(self, device: torch.device) -> Self:
        """The batch with its tensors on `device`."""
        return type(self)(self.input_ids.to(device), self.targets.to(device), self.first_target)


def pad_right(sequences: Sequence[TokenSequence]) -> PaddedBatch:
    """Lays out sequences for a causal model, which needs no attention mask for them.

    No real position can attend to the padding that follows it, and padded positions predict
    nothing. The padding token is therefore any valid id; 0 is always one.
    """
    shape = (len(sequences), max(map(len, sequences)))
    input_ids = torch.zeros(shape, dtype=torch.int64)
    targets = torch.full(shape, IGNORED, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        input_ids[row, : len(sequence)] = torch.tensor(sequence.prompt_ids + sequence.response_ids)
        first = len(sequence.prompt_ids) - 1
        response = torch.tensor(sequence.response_ids)
        if sequence.scored is not None:
            response = response.where(torch.tensor(sequence.scored), IGNORED)
        targets[row, first : len(sequence) - 1] = response
    return PaddedBatch(input_ids, targets, min(len(s.prompt_ids) for s in sequences) - 1)


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
