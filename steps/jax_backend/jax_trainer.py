"""Training in JAX: a `Trainer` with the JAX decoder.

The loss remains a torch function. A forward sends logps to the host and keeps the data for its
backward. The host computes the loss and its gradient by each logp in float64. This gradient is the
input of the vector-Jacobian product (`jax.vjp`), whose result is added to the accumulated gradient:

    weights, round → logps [B, S], pull                  compiled
    logps → loss, d loss / d logps                       torch, on the host
    gathered, weights, round, pull, d logps → gathered   compiled

So every loss works unchanged, and the gradient does not depend on how the batch is cut.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import torch
from jax import Array
from torch import Tensor

from steps.jax_backend.adamw import JaxUpdater
from steps.jax_backend.architecture import Architecture, dropout_of
from steps.jax_backend.decoder import PackArrays
from steps.jax_backend.devices import Devices
from steps.jax_backend.jax_scorer import JaxScorer, make_ready, of_packs, require_one_process
from steps.jax_backend.rounds import Round, RoundsBatch
from steps.jax_backend.stacked import Tree
from steps.models.config import ActivationCheckpointing
from steps.models.folders import load_model, save_model
from steps.models.ranks import Ranks
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import Scored, loss_gradients
from steps.scoring.reference import Reference
from steps.scoring.scored_by import ScoredBy
from steps.scoring.scorer import Batch
from steps.shared.execution_detail import execution_detail
from steps.training.config import OptimizerConfig, TrainConfig
from steps.training.policy import put_weights
from steps.training.trainer import BatchLoss, StepResult, Trainer, step_result, values_by_group
from steps.training.usage import PackCosts, Usage


@partial(jax.tree_util.register_dataclass, data_fields=("kept",), meta_fields=("whole", "given"))
@dataclass(frozen=True)
class Pull:
    """The data of a forward for its backward, without the arrays that are inputs anyway: a
    program's results are copies, and a copy of the weights would take half of the memory.

    kept: the arrays that are not inputs.
    whole: the structure of the vector-Jacobian product.
    given: for each of its arrays, the index of the equal input of the forward, or None.
    """

    kept: list[Array]
    whole: Any
    given: tuple[int | None, ...]

    @classmethod
    def of(cls, pull: Any, inputs: Sequence[Array]) -> Self:
        """Split a vector-Jacobian product that was traced with these inputs."""
        leaves, whole = jax.tree.flatten(pull)
        places = {id(value): place for place, value in enumerate(inputs)}
        given = tuple(places.get(id(leaf)) for leaf in leaves)
        kept = [leaf for leaf, place in zip(leaves, given, strict=True) if place is None]
        return cls(kept, whole, given)

    def with_inputs(self, inputs: Sequence[Array]) -> Any:
        """Rebuild the vector-Jacobian product."""
        kept = iter(self.kept)
        leaves = [next(kept) if place is None else inputs[place] for place in self.given]
        return jax.tree.unflatten(self.whole, leaves)


Forward = Callable[[Tree, PackArrays], tuple[Array, Pull]]
Backward = Callable[[Tree, Tree, PackArrays, Pull, Array], Tree]


class JaxTrainer(Trainer):
    """Trains the weights of a scorer, all of them, without dropout."""

    scorer: JaxScorer

    def __init__(
        self,
        scorer: JaxScorer,
        optimizer: OptimizerConfig,
        master_weights: bool = True,
        recomputed: ActivationCheckpointing = ActivationCheckpointing.selective,
    ) -> None:
        weights, scorer.host_weights = scorer.host_weights, {}
        self._jax = JaxUpdater(
            weights, scorer.devices, scorer.compute_dtype, optimizer, master_weights
        )
        scorer.weights = lambda: self._jax.trained
        self._begin(scorer, self._jax, _usage(scorer))
        logps_of = partial(scorer.logps_of, recomputed=str(recomputed))
        self._forward, self._backward = forward_and_backward(logps_of, scorer.devices)

    def take_gradient(self) -> Tree:
        """Return the accumulated gradient, and reset it to zero."""
        gathered, self._jax.gradient = self._jax.gradient, None
        assert gathered is not None
        return gathered

    def _forward_backward(self, batch: Batch, loss: BatchLoss) -> StepResult:
        assert isinstance(batch, RoundsBatch)
        parts = [part for one in batch.rounds for part in self._of_round(one, batch, loss)]
        names = list(parts[0].metrics)
        values = values_by_group(parts)[:, torch.cat(batch.members).argsort()]
        return step_result(names, values, batch.groups)

    def _of_round(self, one: Round, batch: Batch, loss: BatchLoss) -> list[Scored]:
        weights, arrays = self._jax.trained, self.scorer.on_devices(one.arrays)
        logps, pull = self._forward(weights, arrays)
        on_host = np.asarray(logps)
        gradients, scored = np.zeros_like(on_host), []
        for place, per_token in enumerate(of_packs(on_host, one, batch.packs)):
            pack, members = batch.packs[one.numbers[place]], batch.members[one.numbers[place]]
            part, of_logps = loss_gradients(
                per_token,
                pack,
                lambda sums, groups, members=members: loss(sums, members[groups]),
                slice(0, len(pack.groups)),
            )
            gradients[place, : len(of_logps)] = of_logps.numpy()
            scored.append(part)
        gathered = self._jax.gradient or self._jax.zeros()
        spread = jax.device_put(gradients, self.scorer.devices.of_packs())
        self._jax.gradient = self._backward(gathered, weights, arrays, pull, spread)
        return scored


def forward_and_backward(
    logps_of: Callable[[Tree, PackArrays], Array], devices: Devices
) -> tuple[Forward, Backward]:
    """The compiled forward and backward (see the module). The backward overwrites the accumulated
    gradient."""

    @jax.jit
    def forward(weights: Tree, arrays: PackArrays) -> tuple[Array, Pull]:
        logps, pull = jax.vjp(lambda w: logps_of(w, arrays), weights)
        return logps, Pull.of(pull, jax.tree.leaves((weights, arrays)))

    @partial(jax.jit, donate_argnums=0)
    def backward(
        gathered: Tree, weights: Tree, arrays: PackArrays, pull: Pull, of_logps: Array
    ) -> Tree:
        (gradient,) = pull.with_inputs(jax.tree.leaves((weights, arrays)))(of_logps)
        spread = devices.weights(gathered)
        gradient = jax.tree.map(jax.lax.with_sharding_constraint, gradient, spread)
        return jax.tree.map(lambda sum_, g: sum_ + g.astype(sum_.dtype), gathered, gradient)

    return forward, backward


class JaxPolicy:
    """A folder opened for training; `check`: see `JaxScoring`."""

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        ranks: Ranks,
        dropout: bool,
        devices: int | None,
        check: bool,
    ) -> None:
        require_one_process(ranks, config.attention)
        _require_trainable(folder, config, dropout)
        self._folder, self._config, self._check = folder, config, check
        scorer = JaxScorer(folder, config.dtype, config.tokens_per_forward, devices)
        self.vocabulary = scorer.architecture.vocabulary
        self.trainer = JaxTrainer(
            scorer, config.optimizer, config.master_weights, config.activation_checkpointing
        )

    def make_ready(
        self,
        groups: Sequence[TokenGroup],
        others: Sequence[TokenGroup] = (),
        shown_by: Sequence[Reference] = (),
    ) -> tuple[ScoredBy, list[str]]:
        scorer, dtype, every = self.trainer.scorer, self._config.dtype, [*groups, *others]
        return make_ready(scorer, self._folder, dtype, every, self._check, shown_by)

    def trained(self) -> Mapping[str, Tensor]:
        return self.trainer.get_weights().result()

    def save(self, trained: Mapping[str, Tensor], output: Path) -> None:
        model = load_model(self._folder, self._config.dtype, on_host=True)
        put_weights(trained, model)
        save_model(model, output, tokenizer_from=self._folder)


def _require_trainable(folder: Path, config: TrainConfig, dropout: bool) -> None:
    if config.lora is not None:
        raise ValueError(
            "backend=jax trains all weights; set lora=null, or use torch (backend=null)"
        )
    if dropout and (dropouts := dropout_of(folder)):
        name, share = next(iter(dropouts.items()))
        raise ValueError(
            f"backend=jax has no dropout, and the model of {folder} asks for {name}={share}; set "
            "it to 0 in its config.json, or use torch (backend=null)"
        )


@execution_detail
def _usage(scorer: JaxScorer) -> Usage:
    costs = costs_of(scorer.architecture, scorer.weights())
    return Usage(costs, scorer.tokens_per_forward, torch.device("cpu"), scorer.dtype)


@execution_detail
def costs_of(a: Architecture, weights: Tree) -> PackCosts:
    """The FLOPs of packs, from a tree of weights or of their shapes."""
    body = sum(w.size for w in weights["layers"].values()) + weights["model.norm.weight"].size
    return PackCosts(6 * body, 6 * a.vocabulary * a.hidden, 12 * a.layers * a.hidden)
