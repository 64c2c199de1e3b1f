"""What a training loop asks of an engine.

A loop hands over batches and losses and gets futures. Calls on one backend take effect in the order
in which they are made, so a loop queues a whole step, prepares the next batch while the device
works, and only then looks at what came out:

    result = backend.forward_backward(batch, loss)
    norm = backend.optim_step(rate)
    batch = backend.prepare(next_groups, next_noise)    # while the device works
    log(result.result(), norm.result())

A batch is the examples of one optimiser step. How it is cut into forwards is the backend's affair
and changes neither its loss nor its gradient: a loss comes with the denominators of the whole batch
applied. Nor is it the loop's affair over how many ranks a model is spread: each of them makes the
same calls in the same order, with the same batches, and gets the same results.

The first error poisons a backend: half a step may have happened, so whatever is asked of it
afterwards is refused until it is built again and loads a checkpoint.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import torch
from torch import Tensor

from steps.training.examples import TokenGroup
from steps.training.packing import Pack
from steps.training.pieces import Whole


class PoisonedError(RuntimeError):
    """Something was asked of a backend that an earlier error has left in an unknown state."""


@dataclass(frozen=True)
class Batch:
    """The examples of one step, laid out for a backend's forwards.

    packs: what goes through the model at once.
    members: for each pack, which of `groups` it holds, in its order; int64, on the host.
    noise: seeds the dropout of this batch.
    """

    groups: tuple[TokenGroup, ...]
    packs: tuple[Pack, ...]
    members: tuple[Tensor, ...]
    noise: int = 0


GroupLosses = tuple[Tensor, dict[str, Tensor]]
"""Of n groups: their losses [n] and what is logged of each, [n] under every name, detached."""


class BatchLoss(Protocol):
    """The loss of one batch. It holds what the batch's groups need: reference, weights, counts."""

    def __call__(self, logps: Tensor, members: Tensor) -> GroupLosses:
        """The losses of some of the batch's groups.

        Differentiable, and scaled such that their sum over the batch is its loss.

        Args:
            logps: summed logps, float64 [n, responses of a group].
            members: which groups of the batch these are, int64 [n].
        """
        ...

    def to(self, device: torch.device) -> Self:
        """The same loss with its tensors on `device`."""
        ...


@dataclass(frozen=True)
class StepResult:
    """What a batch came to, per group in the batch's order; float64 [n] on the host.

    losses: their sum is the loss.
    logps: summed logps of the responses, by the weights before the step; [n, responses of a group].
    """

    losses: Tensor
    logps: Tensor
    metrics: Mapping[str, Tensor]


@dataclass(frozen=True)
class Logps:
    """Log-probabilities of a batch's responses, in its order, response after response of a group.

    tokens: of each response, those of its scored tokens; float32, or float64 for a float64 model.
    sequences: their sums, float64 [responses].
    All on the host.
    """

    tokens: tuple[Tensor, ...]
    sequences: Tensor


class Backend(Protocol):
    """A model that can be trained and scored, wherever and however that is done."""

    @property
    def weight_version(self) -> int:
        """How often the weights have changed: by an update or by being loaded."""
        ...

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0) -> Batch:
        """Lays out the examples of one step. Work of the host alone; nothing is queued."""
        ...

    def forward_backward(self, batch: Batch, loss: BatchLoss) -> Future[StepResult]:
        """Adds the batch's gradient to what has gathered since the last update.

        The future raises FloatingPointError, naming rows, if a loss is not finite.
        """
        ...

    def optim_step(self, learning_rate: float) -> Future[float]:
        """Updates the weights and clears the gradient; its global norm before clipping.

        The future raises FloatingPointError if that is not finite; then no weight has changed.
        """
        ...

    def logps(self, batch: Batch) -> Future[Logps]:
        """Scores the batch without gradients or dropout."""
        ...

    def get_weights(self) -> Future[dict[str, Tensor]]:
        """A copy on the host of every trained parameter, in the dtype the model computes in.

        Of several ranks the first gets it, and the others nothing; all must ask.
        """
        ...

    def load_weights(self, weights: Mapping[str, Whole]) -> Future[None]:
        """Replaces the trained parameters; the optimiser's state stays as it is."""
        ...

    def save_weights(self, path: Path) -> Future[None]:
        """Writes one file with what this rank has of the trained parameters as of this call."""
        ...

    def save_checkpoint(self, path: Path) -> Future[None]:
        """Writes one file with what this rank has of the state as of this call: trained weights,
        optimiser, version.

        The state is copied when its turn comes; writing goes on beside later calls.
        """
        ...

    def load_checkpoint(self, files: Sequence[Path]) -> Future[None]:
        """Goes back to a state that `save_checkpoint` wrote, on any number of ranks: the files of
        all of them.

        The future raises ValueError if it is that of a model with other parameters.
        """
        ...

    def usage(self, batch: Batch, seconds: float) -> dict[str, float]:
        """How well a step of `batch` that took `seconds` used the device; see `usage.Usage`."""
        ...

    def close(self) -> None:
        """Waits for what is queued and ends the backend's threads."""
        ...
