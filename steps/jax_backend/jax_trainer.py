"""Training in JAX: a `Trainer` with the JAX decoder.

The loss remains a torch function. A forward sends logps to the host and keeps the data for its
backward. The host computes the loss and its gradient by each logp in float64. This gradient is the
input of the vector-Jacobian product (`jax.vjp`), whose result is added to the accumulated gradient:

    weights, round → logps [B, S], pull                  compiled
    logps → loss, d loss / d logps                       torch, on the host
    gathered, weights, round, pull, d logps → gathered   compiled

So every loss works unchanged, and the gradient does not depend on how the batch is cut.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np
import torch
from jax import Array
from torch import Tensor
from transformers import PreTrainedModel

from steps.jax_backend.architecture import Architecture, other_dropouts, read_architecture
from steps.jax_backend.attending.query_blocks import attend
from steps.jax_backend.decoder import ADAPTER, SCORE, telling
from steps.jax_backend.devices import Devices, on_host, put
from steps.jax_backend.jax_scorer import JaxScorer, by_length, make_ready, of_packs, require_packs
from steps.jax_backend.jax_updates import JaxUpdater, frozen_apart
from steps.jax_backend.pack_arrays import PackArrays
from steps.jax_backend.param_tree import NOTHING, Tree, adapters_of, beside, by_name
from steps.jax_backend.static_batches import Round, RoundsBatch
from steps.models.adapters import merge_adapter
from steps.models.config import ActivationCheckpointing, LoraConfig
from steps.models.folders import save_model
from steps.models.ranks import ALONE, Ranks
from steps.models.sharded_tensors import Pieces, pieces_of
from steps.scoring.examples import TokenGroup, joined
from steps.scoring.logps import Scored, loss_gradients
from steps.scoring.packing import make_pack
from steps.scoring.reference import Reference
from steps.scoring.scored_by import ScoredBy
from steps.scoring.scorer import Batch
from steps.shared.execution_detail import execution_detail
from steps.training.config import OptimizerConfig, TrainConfig
from steps.training.policy import Role, save_trained
from steps.training.trainer import BatchLoss, StepResult, Trainer, put_weights, step_result
from steps.training.usage import PackCosts, Usage

if TYPE_CHECKING:
    from peft import PeftModel


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


_GRADIENT_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""How far a kernel's gradient may be from that without it, as a part of its norm."""

Forward = Callable[[Tree, Tree, PackArrays], tuple[Array, Pull]]
Backward = Callable[[Tree, Tree, Tree, PackArrays, Pull, Array], Tree]


class JaxTrainer(Trainer):
    """Trains the weights of a scorer, or adapters beside them.

    Args:
        adapters: parameters of these by name, as `peft` initialises them; they alone are trained
            then. How much they count, the scorer's architecture says.
        dropout: the model's own acts. That of adapters always does.
        normalised: as in `TrainedReadout`.
        ranks: every one of them has such a trainer and makes the same calls.
    """

    scorer: JaxScorer

    def __init__(
        self,
        scorer: JaxScorer,
        optimizer: OptimizerConfig,
        master_weights: bool = True,
        recomputed: ActivationCheckpointing = ActivationCheckpointing.selective,
        adapters: Mapping[str, Tensor] | None = None,
        dropout: bool = False,
        ranks: Ranks = ALONE,
        normalised: bool = False,
    ) -> None:
        weights, scorer.host_weights = scorer.host_weights, {}
        frozen, self._ranks = NOTHING, ranks
        if adapters is not None:
            frozen, weights = weights, adapters_of(adapters, scorer.architecture.layers)
        weights, others = frozen_apart(weights, optimizer)
        self._frozen = scorer.devices.put_weights(beside(frozen, others))
        self._jax = JaxUpdater(
            weights, scorer.devices, scorer.compute_dtype, optimizer, master_weights
        )
        scorer.weights = lambda: beside(self._frozen, self._jax.trained)
        self._begin(scorer, self._jax, _usage(scorer, adapters is not None))
        own = scorer.architecture.attention_dropout if dropout else 0.0
        self._is_noisy = own > 0 or bool(adapters and scorer.architecture.adapter_dropout)
        architecture = replace(scorer.architecture, attention_dropout=own)
        self._recomputed = str(recomputed)
        options = {"recomputed": self._recomputed, "hits": scorer.hits}
        options |= {"normalised": True} if normalised else {}
        logps_of = scorer.logps_with(architecture, **options)
        self._forward, self._backward = forward_and_backward(logps_of, scorer.devices)

    def check_kernel(self, groups: Sequence[TokenGroup]) -> None:
        """Compares the gradient that the kernel gives the longest of some examples, laid out as a
        full pack, with that of attention by XLA.

        Raises ValueError naming a weight where they differ by more than rounding.
        """
        scorer = self.scorer
        pack = make_pack(by_length(groups)[-1:])
        (one,) = scorer.lay_out([pack], scorer.full_size(groups))
        arrays = scorer.on_devices(one.arrays)

        def gradient(options: dict[str, Any]) -> Tree:
            options = {"recomputed": self._recomputed} | options
            logps_of = scorer.logps_with(scorer.architecture, **options)
            head = np.ones((1, scorer.architecture.hidden), scorer.compute_dtype)

            def summed(trained: Tree, frozen: Tree, arrays: PackArrays) -> Array:
                return logps_of(telling(beside(frozen, trained), head), arrays).sum()

            return jax.jit(jax.grad(summed))(self._jax.trained, self._frozen, arrays)

        ours, theirs = (by_name(gradient(how)) for how in ({}, {"attend": attend}))
        for (name, mine), (_, other) in zip(ours, theirs, strict=True):
            mine, other = (np.asarray(x, np.float64) for x in (mine, other))
            off, size = np.linalg.norm(mine - other), np.linalg.norm(other)
            if not off <= _GRADIENT_TOLERANCES[scorer.dtype] * max(size, 1e-30):
                raise ValueError(
                    f"the gradient of {name} that backend.kernel=true gives differs by "
                    f"{off / max(size, 1e-30):.1e} of it; set it to false, and please report it"
                )

    def take_gradient(self) -> Tree:
        """Return the accumulated gradient, and reset it to zero."""
        gathered, self._jax.gradient = self._jax.gradient, None
        assert gathered is not None
        return gathered

    def _forward_backward(self, batch: Batch, loss: BatchLoss) -> StepResult:
        assert isinstance(batch, RoundsBatch)
        parts = [part for one in batch.rounds for part in self._of_round(one, batch, loss)]
        return step_result(list(parts[0].metrics), self._values(batch, parts), batch.groups)

    def _of_round(self, one: Round, batch: Batch, loss: BatchLoss) -> list[Scored]:
        arrays = self._with_noise(one, batch.noise) if self._is_noisy else one.arrays
        arrays = self.scorer.on_devices(arrays)
        inputs = (self._jax.trained, self._frozen, arrays)
        logps, pull = self._forward(*inputs)
        values = on_host(logps)
        gradients, scored = np.zeros_like(values), []
        for place, (part, of_logps) in enumerate(losses_of(values, one, batch, loss)):
            gradients[place, : len(of_logps)] = of_logps.numpy()
            scored.append(part)
        gathered = self._jax.gradient or self._jax.zeros()
        spread = put(gradients, self.scorer.devices.of_packs())
        self._jax.gradient = self._backward(gathered, *inputs, pull, spread)
        return scored

    def _with_noise(self, one: Round, noise: int) -> PackArrays:
        """A round whose packs have each a seed of its own: by the step's and their number in it."""
        seeds = np.zeros((len(one.arrays.ids), 2), np.uint32)
        for place, number in enumerate(one.numbers):
            seeds[place] = np.random.SeedSequence([noise, number]).generate_state(2)
        return replace(one.arrays, noise=seeds)

    def _weights(self, everywhere: bool) -> dict[str, Tensor]:
        weights = super()._weights(everywhere)
        return weights if self._ranks.is_first else {}

    def _pieces(self, tensors: Mapping[str, Tensor]) -> Pieces:
        """All, on the first of several ranks; the others' files are empty."""
        return pieces_of(tensors, self._ranks.is_first)


def losses_of(
    values: np.ndarray, one: Round, batch: Batch, loss: BatchLoss
) -> Iterator[tuple[Scored, Tensor]]:
    """Of each pack in a round with logps [B, S]: its losses, and their gradient by the logps."""
    for number, per_token in zip(one.numbers, of_packs(values, one, batch.packs), strict=True):
        pack, members = batch.packs[number], batch.members[number]
        yield loss_gradients(
            per_token,
            pack,
            lambda sums, groups, members=members: loss(sums, members[groups]),
            slice(0, len(pack.groups)),
        )


def forward_and_backward(
    logps_of: Callable[[Tree, PackArrays], Array], devices: Devices
) -> tuple[Forward, Backward]:
    """The compiled forward and backward (see the module). The backward overwrites the accumulated
    gradient."""

    @jax.jit
    def forward(weights: Tree, frozen: Tree, arrays: PackArrays) -> tuple[Array, Pull]:
        logps, pull = jax.vjp(lambda w: logps_of(beside(frozen, w), arrays), weights)
        return logps, Pull.of(pull, jax.tree.leaves((weights, frozen, arrays)))

    @partial(jax.jit, donate_argnums=0)
    def backward(
        gathered: Tree, weights: Tree, frozen: Tree, arrays: PackArrays, pull: Pull, of_logps: Array
    ) -> Tree:
        (gradient,) = pull.with_inputs(jax.tree.leaves((weights, frozen, arrays)))(of_logps)
        spread = devices.weights(gathered)
        gradient = jax.tree.map(jax.lax.with_sharding_constraint, gradient, spread)
        return jax.tree.map(lambda sum_, g: sum_ + g.astype(sum_.dtype), gathered, gradient)

    return forward, backward


class JaxPolicy:
    """A folder opened for training by `how`, a `JaxTraining`; or another, for a class that opens
    the scorer by itself."""

    def __init__(
        self, folder: Path, config: TrainConfig, ranks: Ranks, dropout: bool, role: Role, how: Any
    ) -> None:
        self._folder, self._config, self._role = folder, config, role
        self._check, self._ranks = how.check, ranks
        scorer = self._open(dropout, how)
        self.vocabulary = scorer.architecture.vocabulary
        adapters = None
        if config.lora is not None:
            scorer.adapt(config.lora)
            adapters = self._adapted(config.lora)[1]
        self.trainer = JaxTrainer(
            scorer,
            config.optimizer,
            config.master_weights,
            config.activation_checkpointing,
            adapters,
            dropout,
            ranks,
            role.readout.normalised,
        )

    def _open(self, dropout: bool, how: Any) -> JaxScorer:
        """The scorer of the folder; raises ValueError for what this backend lacks."""
        config, kind = self._config, self._role.kind
        require_packs(config.attention)
        if dropout:
            _require_dropout(self._folder, how.kernel)
        place = (config.tokens_per_forward, how.devices, self._ranks, how.kernel)
        return JaxScorer(self._folder, config.dtype, *place, kind, self._role.readout.hits)

    def make_ready(
        self,
        groups: Sequence[TokenGroup],
        others: Sequence[TokenGroup] = (),
        shown_by: Sequence[Reference] = (),
    ) -> tuple[ScoredBy, list[str]]:
        scorer, every = self.trainer.scorer, joined(groups, others)
        if scorer.kernel:
            self.trainer.check_kernel(every)
        place = (self._folder, self._config.dtype, every, self._check, shown_by, self._ranks)
        role = self._role
        return make_ready(scorer, *place, load=role.load, probe=role.readout.probe)

    def trained(self) -> Mapping[str, Tensor]:
        return self.trainer.get_weights().result()

    def save(self, trained: Mapping[str, Tensor], output: Path, base: str | None = None) -> None:
        if self._config.lora is None:
            model: PreTrainedModel = self._load()
            put_weights(trained, model)
        else:
            adapted, parameters = self._adapted(self._config.lora)
            for name, value in trained.items():
                parameters[name].copy_(value)
            if self._role.keeps_adapter:
                save_trained(adapted, output, self._folder, self._config, base)
                return
            model = merge_adapter(adapted)
        save_model(model, output, tokenizer_from=self._folder)

    def _load(self) -> PreTrainedModel:
        return self._role.load(self._folder, self._config.dtype, True, None)

    def _adapted(self, lora: LoraConfig) -> "tuple[PeftModel, dict[str, Tensor]]":
        """Transformers' model with adapters as torch begins with them, and their parameters."""
        model = self._load()
        adapted = self._role.adapt(model, lora, self._config.seed)
        return adapted, {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}


def _require_dropout(folder: Path, kernel: bool) -> None:
    """Refuses a model that asks for dropout where the decoder has none."""
    if kernel and read_architecture(folder).attention_dropout:
        raise ValueError(
            f"backend.kernel=true drops nothing, and the model of {folder} asks for "
            "attention_dropout; set it to 0 in its config.json, or backend.kernel=false"
        )
    for name, share in other_dropouts(folder).items():
        raise ValueError(
            f"backend=jax drops nothing but attention's weights and adapters' inputs, and the "
            f"model of {folder} asks for {name}={share}; set it to 0 in its config.json, or use "
            "torch (backend=null)"
        )


@execution_detail
def _usage(scorer: JaxScorer, is_adapted: bool) -> Usage:
    costs = costs_of(scorer.architecture, scorer.weights(), is_adapted)
    return Usage(costs, scorer.tokens_per_forward, torch.device("cpu"), scorer.dtype)


@execution_detail
def costs_of(a: Architecture, weights: Tree, is_adapted: bool) -> PackCosts:
    """The FLOPs that packs cost, of a tree of weights; of adapted ones adapters are trained."""
    body = sum(w.size for w in weights["layers"].values()) + weights["model.norm.weight"].size
    trained = sum(w.size for n, w in weights["layers"].items() if n.endswith(ADAPTER))
    trained, of_head = (trained, 4) if is_adapted else (body, 6)
    outputs = 1 if SCORE in weights else a.vocabulary
    return PackCosts(4 * body + 2 * trained, of_head * outputs * a.hidden, 12 * a.layers * a.hidden)
