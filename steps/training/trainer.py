"""A trainer: its interface for a training loop, and its implementation on one device.

A trainer takes batches and losses and returns futures. A trainer and its scorer execute calls in
their order. So a loop queues a whole step, prepares the next batch while the device computes, and
only then reads the results:

    result = trainer.forward_backward(batch, loss)
    norm = trainer.optim_step(rate)
    batch = trainer.prepare(next_groups, next_noise)    # while the device works
    log(result.result(), norm.result())

A batch consists of the examples of one optimiser step. How it is cut into forwards changes neither
its loss nor its gradient, as a loss is already divided by the denominators of the whole batch. The
loop does not depend on the number of ranks that share a model: each rank makes the same calls in
the same order, with the same batches, and gets the same results.

A step does not synchronise with the device before its last forward: the results of the loss stay on
the device and come to the host in one transfer.

After its first error, a trainer refuses all calls, because half a step may have been executed.
Build a new trainer then and load a checkpoint.
"""

import copy
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.adapters import draw_by_example
from steps.models.call_queue import SerialQueue
from steps.models.ranks import Ranks
from steps.models.sharded_tensors import Pieces, Stored, Whole, on_host, pieces_of, put, whole
from steps.scoring.architectures.batching import rows_of
from steps.scoring.architectures.pack_layouts import Layout, layout_of
from steps.scoring.architectures.routing import Balancing, Load, Routing
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import (
    GroupLoss,
    Scored,
    TokenLogps,
    aligned_logps,
    differentiable_logps,
    forward_backward,
    router_load,
    token_logps,
)
from steps.scoring.packing import Pack
from steps.scoring.scorer import Batch, Logps, Readout, Scorer
from steps.training.config import OptimizerConfig
from steps.training.optimizer import Updater, freeze, of_same_names
from steps.training.usage import PackCosts, Usage

GroupLosses = tuple[Tensor, dict[str, Tensor]]
"""The losses [n] of n groups, and their logged metrics by name, [n] each and detached."""


class BatchLoss(Protocol):
    """The loss of one batch, with the data of the batch's groups: reference, weights, counts."""

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        """The losses of some of the batch's groups.

        They are differentiable, and scaled so that their sum over the batch is the batch's loss.

        Args:
            logps: the logps of n groups with k responses, where k is the largest number of
                responses of a group in the batch.
            members: the indices of these groups in the batch, int64 [n].
        """
        ...

    def to(self, device: torch.device) -> Self:
        """The same loss with its tensors on `device`."""
        ...


@dataclass(frozen=True)
class TrainedReadout(Readout):
    """The output of a trained model that the loss uses, and its backward.

    backward: adds the gradient of the summed losses of a pack's groups to the parameters' `.grad`.
    divergences: KL(π_ref ‖ π) in the place of logps, if a reference computes beside the model; its
        losses are given `DivergentLogps`.
    hits: hits are beside the logps (see `scoring.head.with_hits`).
    normalised: in training, the loss is given what `scoring.head.with_normalisers` gives.
    """

    backward: Callable[[PreTrainedModel, Pack, GroupLoss, Routing | None], Scored]
    divergences: Readout | None = None
    hits: bool = False
    normalised: bool = False


TRAINED_LOGPS = TrainedReadout(token_logps, differentiable_logps, token_logps, forward_backward)
"""The readout of a language model: log-probabilities of tokens."""

LOGPS_AND_HITS = TrainedReadout(
    functools.partial(token_logps, hits=True),
    functools.partial(differentiable_logps, hits=True),
    token_logps,
    functools.partial(forward_backward, hits=True),
    hits=True,
)
"""The same, and whether each token is the most likely one."""


def normalised(readout: TrainedReadout) -> TrainedReadout:
    """The same readout, `normalised`; raises ValueError if it is not of logps alone."""
    if readout not in (TRAINED_LOGPS, LOGPS_AND_HITS):
        raise ValueError("z_loss_coef is for SFT and for losses of a language model's own tokens")
    recorded = functools.partial(differentiable_logps, normalised=True)
    backward = functools.partial(forward_backward, normalised=True)
    return replace(readout, recorded=recorded, backward=backward, normalised=True)


@dataclass(frozen=True)
class DivergentLogps(TokenLogps):
    """Logps of a policy whose reference computes beside it.

    divergences: KL(π_ref ‖ π) over the vocabulary at each scored token, float64 [S].
    """

    divergences: Tensor

    def divergence_sums(self) -> Tensor:
        """The sum over each response's scored tokens, float64 [n, k]."""
        return TokenLogps(self.divergences, self.lengths).sums()


def reading_divergences(scorer: Scorer) -> Scorer:
    """The same scorer, whose scores are KL(π_ref ‖ π); a reference is beside its model."""
    readout = scorer.readout
    assert isinstance(readout, TrainedReadout)
    assert readout.divergences is not None
    return _reading(scorer, readout.divergences)


def _reading(scorer: Scorer, readout: Readout) -> Scorer:
    other = copy.copy(scorer)
    other.readout = readout
    return other


def reading_aligned(scorer: Scorer) -> Scorer:
    """The same scorer, whose scores are `aligned_logps`."""
    return _reading(scorer, _ALIGNED_LOGPS)


_ALIGNED_LOGPS = Readout(
    aligned_logps, lambda model, pack, _: aligned_logps(model, pack), aligned_logps
)


@dataclass(frozen=True)
class StepResult:
    """The results of a batch, for each group in the batch's order; float64 [n] on the host.

    losses: their sum is the batch's loss.
    logps: the summed logps of the responses under the weights before the step; [n, k], and 0 where
        a group has fewer than k responses.
    """

    losses: Tensor
    logps: Tensor
    metrics: Mapping[str, Tensor]


class Updates(Protocol):
    """The interface of an optimiser; `optimizer.Updater` documents its methods."""

    @property
    def rate(self) -> float: ...
    def gradient_norm(self) -> float: ...
    def step(self, rate: float | None) -> float: ...
    def state(self) -> dict[str, Tensor]: ...
    def load_state(self, tensors: Mapping[str, Whole]) -> None: ...
    def weights(self) -> dict[str, Tensor]: ...
    def load_weights(self, weights: Mapping[str, Whole]) -> None: ...


AnyUpdates = TypeVar("AnyUpdates", bound=Updates)


class Measures(Protocol):
    """The interface of measurements of a step; see `usage.Usage`."""

    def report(self, batch: Batch, seconds: float) -> dict[str, float]: ...


class Engine:
    """What all backends share: calls on weights, executed in their order in one thread.

    A backend of your own writes `_forward_backward`, and begins with an `Updates`.
    """

    _model: Any = None

    def _begin_queue(self, queue: SerialQueue, updater: Updates) -> None:
        self._queue, self._updater = queue, updater
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer-writer")

    def wrap_updates(self, wrap: Callable[[Updates], AnyUpdates]) -> AnyUpdates:
        """Put an optimiser around the present one, before the first call."""
        self._updater = wrapped = wrap(self._updater)
        return wrapped

    def forward_backward(self, batch: Any, loss: Any) -> Future[StepResult]:
        """Add the batch's gradient to the gradient accumulated since the last update.

        The future raises FloatingPointError, as `require_finite`.
        """
        return self._queue.submit(lambda: self._forward_backward(batch, loss))

    def _forward_backward(self, batch: Any, loss: Any) -> StepResult:
        raise NotImplementedError

    def gradient_norm(self) -> Future[float]:
        """The global 2-norm of the gradient that has accumulated; nan if it is not known."""
        return self._queue.submit(lambda: self._updater.gradient_norm())

    @property
    def learning_rate(self) -> float:
        """The rate of the last step, or of the next one if it is given none."""
        return self._updater.rate

    def optim_step(self, learning_rate: float | None) -> Future[float]:
        """Update the weights and clear the gradient; the future is its global norm before clipping,
        or nan if it is not known. Without a rate, it is that of the optimiser.

        The future raises FloatingPointError if the norm is not finite; then no weight has changed.
        """
        return self._queue.submit(lambda: self._updater.step(learning_rate))

    def get_weights(self, everywhere: bool = False) -> Future[dict[str, Tensor]]:
        """A copy, on the host, of every trained parameter, in the dtype of the model.

        Unless `everywhere` is set, only the first rank gets the copies; the others get an empty
        dict. All ranks must call this.
        """
        return self._queue.submit(lambda: self._weights(everywhere))

    def load_weights(self, weights: Mapping[str, Whole]) -> Future[None]:
        """Replace the trained parameters; the optimiser's state does not change."""
        return self._queue.submit(lambda: self._updater.load_weights(weights))

    def save_weights(self, path: Path) -> Future[None]:
        """Write a file with this rank's shard of the parameters as they are at this call."""
        return self._save(path, lambda: self._updater.weights())

    def save_checkpoint(self, path: Path) -> Future[None]:
        """Write a file with this rank's shard of the state at the time of this call: trained
        weights and optimiser.

        The state is copied in the order of calls; the file is written in the background.
        """
        return self._save(path, lambda: self._updater.state())

    def save_state(self, path: Path) -> Future[None]:
        """Write what `save_checkpoint` writes as one file with all rows, on the first rank; all
        ranks must call this."""
        return self.save_checkpoint(path)

    def load_checkpoint(self, files: Sequence[Path]) -> Future[None]:
        """Restore a state from the `files` that `save_checkpoint` wrote on all ranks. The number of
        ranks may have been different.

        The future raises ValueError if the state belongs to a model with other parameters.
        """
        return self._queue.submit(lambda: self._updater.load_state(Stored(files)))

    def state(self) -> Future[dict[str, Tensor]]:
        """A copy, on the host, of the whole state, by the names of `Updates.state`."""

        def copied() -> dict[str, Tensor]:
            return {name: on_host(tensor) for name, tensor in self._updater.state().items()}

        return self._queue.submit(copied)

    def load_state(self, tensors: Mapping[str, Whole]) -> Future[None]:
        """Restore a result of `state`, beside which there may be weights that are not trained."""

        def load() -> None:
            kept = {f"model/{name}" for name in self._updater.weights()}
            some = {n: t for n, t in tensors.items() if n in kept or not n.startswith("model/")}
            self._updater.load_state(some)

        return self._queue.submit(load)

    def whole_weights(self) -> Future[dict[str, Tensor]]:
        """A copy, on the host, of all weights and buffers, also of those that are not trained."""
        return self._queue.submit(self._whole_weights)

    def load_whole_weights(self, weights: Mapping[str, Tensor]) -> Future[None]:
        """Replace all weights; the optimiser's state does not change."""
        return self._queue.submit(lambda: self._load_whole_weights(weights))

    def restore(
        self, weights: Mapping[str, Tensor], state: Mapping[str, Whole]
    ) -> list[Future[None]]:
        """Restore results of `whole_weights` and `state`."""
        return [self.load_whole_weights(weights), self.load_state(state)]

    def close(self) -> None:
        """Wait for queued work, then end the threads."""
        self._queue.close()
        self._writer.shutdown()

    def _whole_weights(self) -> dict[str, Tensor]:
        others = {} if self._model is None else self._model.state_dict()
        return {name: on_host(whole(tensor)) for name, tensor in others.items()} | self._weights(
            True
        )

    def _load_whole_weights(self, weights: Mapping[str, Tensor]) -> None:
        trained = self._updater.weights().keys()
        others = {} if self._model is None else self._model.state_dict()
        others = {name: tensor for name, tensor in others.items() if name not in trained}
        of_same_names(weights, "", dict.fromkeys([*trained, *others]))
        for name, tensor in others.items():
            put(weights[name], tensor)
        self._updater.load_weights({name: weights[name] for name in trained})

    def _weights(self, everywhere: bool) -> dict[str, Tensor]:
        return {name: on_host(tensor) for name, tensor in self._updater.weights().items()}

    def _save(self, path: Path, tensors: Callable[[], Mapping[str, Tensor]]) -> Future[None]:
        copied = self._queue.submit(lambda: self._pieces(tensors()))
        return self._writer.submit(lambda: copied.result().write(path))

    def _pieces(self, tensors: Mapping[str, Tensor]) -> Pieces:
        return pieces_of(tensors)


class Trainer(Engine):
    """Trains the model of a scorer.

    Args:
        dropout: whether the model's own dropout is on in `forward_backward`. It is off for
            preference losses, because references are computed without dropout. The dropout of
            adapters is always on.
        readout: the readout of the scorer.

    balancing: if set, the load-balancing loss of a mixture of experts is added to every batch's
        loss.
    """

    def __init__(
        self,
        scorer: Scorer,
        optimizer: OptimizerConfig,
        master_weights: bool = True,
        dropout: bool = False,
        readout: TrainedReadout = TRAINED_LOGPS,
    ) -> None:
        self._readout = readout
        self._begin_module(scorer, Updater(scorer.model, optimizer, master_weights), dropout)

    def _begin_module(self, scorer: Scorer, updater: Updates, dropout: bool) -> None:
        """Begin with the scorer's model, whose parameters `updater` updates."""
        self._model = scorer.model
        costs = PackCosts.of(self._model)
        usage = Usage(costs, scorer.tokens_per_forward, self._model.device, scorer.dtype)
        self._begin(scorer, updater, usage)
        self._model.train(dropout)
        self._noise = draw_by_example(self._model)

    def _begin(self, scorer: Scorer, updater: Updates, usage: Measures) -> None:
        self.scorer = scorer
        self.balancing: Balancing | None = None
        self._usage = usage
        self._begin_queue(scorer.queue, updater)

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0) -> Batch:
        """Lay out the examples of one step, like the scorer's method."""
        return self.scorer.prepare(groups, noise)

    def logps(self, batch: Batch) -> Future[Logps]:
        """Queue the scoring of a batch without gradients or dropout, like the scorer's method."""
        return self.scorer.logps(batch)

    def usage(self, batch: Batch, seconds: float) -> dict[str, float]:
        """Measurements of a step of `batch` that took `seconds`; see `usage.Usage`."""
        return self._usage.report(batch, seconds)

    def close(self) -> None:
        """Wait for queued work, then end the threads, including the scorer's."""
        self.scorer.close()
        self._writer.shutdown()

    def _forward_backward(self, batch: Batch, loss: BatchLoss) -> StepResult:
        torch.manual_seed(self._seed(batch))
        loss = loss.to(self._model.device)
        routings = self._routings(batch)
        if self.balancing is not None:  # what has counted the load drew the same noise
            torch.manual_seed(self._seed(batch))
        parts = [self._gradient(batch, n, loss, routing) for n, routing in enumerate(routings)]
        names, values = list(parts[0].metrics), self._values(batch, parts)
        return step_result(names, values, batch.groups, self._auxiliary(routings))

    def _seed(self, batch: Batch) -> int:
        """The seed of the model's own dropout."""
        return batch.noise

    def _begin_forward(self, batch: Batch, number: int) -> tuple[Pack, Tensor]:
        """The pack of a forward and its members, on the device. Adapters drop out with the noise of
        these examples, unless each response is read alone."""
        device, members = self._model.device, batch.members[number]
        pack = batch.packs[number].to(device)
        if self._noise is not None:
            layout = layout_of(self._model)
            sizes = [(i, batch.groups[i].packed_tokens) for i in members.tolist()]
            self._noise.begin(
                batch.noise,
                () if layout is Layout.alone else sizes,
                rows_of(pack) if layout is Layout.batched else None,
            )
        return pack, members.to(device, non_blocking=True)

    def _gradient(
        self, batch: Batch, number: int, loss: BatchLoss, routing: Routing | None
    ) -> Scored:
        """Add the gradient of one pack of the batch."""
        pack, members = self._begin_forward(batch, number)
        return self._readout.backward(
            self._model, pack, lambda logps, groups: loss(logps, members[groups]), routing
        )

    def _values(self, batch: Batch, parts: Sequence[Scored]) -> Tensor:
        """The `values_by_group` of all groups, in the batch's order."""
        return values_by_group(parts)[:, torch.cat(batch.members).argsort()]

    def _routings(self, batch: Batch) -> list[Routing | None]:
        """A recorder of experts' load for each pack of the batch. If there are several packs, a
        pass without gradients first computes the load of the whole batch."""
        balancing = self.balancing
        if balancing is None:
            return [None] * len(batch.packs)
        whole = self._load(batch, balancing) if self._needs_load(batch) else None
        return [Routing(balancing, whole) for _ in batch.packs]

    def _needs_load(self, batch: Batch) -> bool:
        return len(batch.packs) > 1

    def _load(self, batch: Batch, balancing: Balancing) -> Load:
        """The load of experts over all tokens of the batch, with the dropout of adapters that the
        forwards after it have."""
        packs = (self._begin_forward(batch, number)[0] for number in range(len(batch.packs)))
        loads = (router_load(self._model, pack, balancing) for pack in packs)
        return functools.reduce(operator.add, loads)

    def _auxiliary(self, routings: Sequence[Routing | None]) -> "Auxiliary | None":
        """The load-balancing loss of the batch, after the forwards of its packs."""
        routing = routings[0]
        if routing is None or self.balancing is None:
            return None
        return Auxiliary(self.balancing.coefficient, routing.batch_loss())


def build_trainer(
    model: PreTrainedModel,
    tokens_per_forward: int,
    ranks: Ranks,
    optimizer: OptimizerConfig,
    master_weights: bool = True,
    dropout: bool = False,
    readout: TrainedReadout = TRAINED_LOGPS,
    gather_once: bool | None = None,
) -> Trainer:
    """A trainer on this process's device; with several ranks, one that shards the model and shares
    the work with the other ranks, and is given `gather_once`."""
    freeze(model, optimizer)
    settings = (optimizer, master_weights, dropout, readout)
    if ranks.count == 1:
        return Trainer(Scorer(model, tokens_per_forward, readout), *settings)
    from steps.training.sharded_trainer import ShardedTrainer

    return ShardedTrainer(model, tokens_per_forward, ranks, *settings, gather_once)


@torch.no_grad()
def put_weights(weights: Mapping[str, Tensor], model: PreTrainedModel) -> None:
    """Copy `weights` into the model's parameters with the same names."""
    for name, value in weights.items():
        model.get_parameter(name).copy_(value)


def values_by_group(parts: Sequence[Scored]) -> Tensor:
    """Losses, logps and metrics of the packs' groups, in one transfer: float64
    [1 + responses of a group + metrics, n]."""
    rows = [torch.cat([part.losses for part in parts]).double()]
    rows += torch.cat([part.logps for part in parts]).double().unbind(dim=1)
    for name in parts[0].metrics:
        rows.append(torch.cat([part.metrics[name] for part in parts]).double())
    return torch.stack(rows).cpu()


@dataclass(frozen=True)
class Auxiliary:
    """The load-balancing loss of a batch, and its coefficient."""

    coefficient: float
    loss: float


def require_finite(
    shares: Mapping[str, Tensor], groups: Sequence[TokenGroup], which: str = ""
) -> None:
    """Raise FloatingPointError, which names the rows, if a loss or a metric of a group [n] is not
    finite: the log is JSON, which has no such numbers, and would be refused at the next checkpoint.

    Args:
        which: what kind of rows they are, for the error.
    """
    for name, values in shares.items():
        finite = values.isfinite().tolist()
        if rows := [group.row for group, good in zip(groups, finite, strict=True) if not good]:
            what = name if name == "loss" else f"metric {name}"
            raise FloatingPointError(f"the {what} of {which}{rows[:8]} is not finite")


def require_finite_loss(loss: Tensor) -> StepResult:
    """The result of a batch with one loss; raises FloatingPointError if that is not finite."""
    if not loss.isfinite():
        raise FloatingPointError(f"the loss is {loss.item()}")
    return StepResult(loss.double().cpu()[None], torch.empty(1, 0), {})


def step_result(
    names: Sequence[str],
    values: Tensor,
    groups: Sequence[TokenGroup],
    auxiliary: Auxiliary | None = None,
) -> StepResult:
    """The result of a batch from its `values_by_group`, in the batch's order. Each group has an
    equal share of an `auxiliary` loss, which is logged as `aux_loss`.

    Raises FloatingPointError, as `require_finite`.
    """
    losses, logps, metrics = values.split([1, len(values) - 1 - len(names), len(names)])
    logged = dict(zip(names, metrics, strict=True))
    require_finite({"loss": losses[0], **logged}, groups)
    if auxiliary is None:
        return StepResult(losses[0], logps.T, logged)
    share = auxiliary.loss / len(groups)
    logged["aux_loss"] = torch.full_like(losses[0], share)
    return StepResult(losses[0] + auxiliary.coefficient * share, logps.T, logged)
