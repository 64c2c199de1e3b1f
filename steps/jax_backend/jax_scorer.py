"""Scoring in JAX: a `Scorer` with the JAX decoder, on the devices of this process."""

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import ml_dtypes
import numpy as np
import torch
import transformers
from jax import Array
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from steps.jax_backend.architecture import Architecture, read_architecture
from steps.jax_backend.attending.with_kernel import open_kernel
from steps.jax_backend.config import JaxDevices
from steps.jax_backend.decoder import telling, token_logps
from steps.jax_backend.devices import leave_together, on_host, open_devices, put
from steps.jax_backend.pack_arrays import PackArrays
from steps.jax_backend.param_tree import Tree, read_weights
from steps.jax_backend.static_batches import Round, Rounds, RoundsBatch
from steps.models.call_queue import SerialQueue
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model
from steps.models.ranks import ALONE, Ranks
from steps.models.value_head import scaled
from steps.scoring import parity
from steps.scoring.config import Attention, ReferenceConfig
from steps.scoring.examples import TokenGroup, facts_of, longest
from steps.scoring.logps import sequence_logps
from steps.scoring.logps import token_logps as torch_logps
from steps.scoring.packing import Pack, make_pack, plan_packs
from steps.scoring.reference import Reference, show_packing
from steps.scoring.scored_by import ScoredBy
from steps.scoring.scorer import Batch, Logps, Scorer, as_tensors, scored_in_batch_order

NUMPY_DTYPES = {
    Dtype.float32: np.dtype(np.float32),
    Dtype.bfloat16: np.dtype(ml_dtypes.bfloat16),
    Dtype.float64: np.dtype(np.float64),
}


class JaxScorer(Scorer):
    """Scores with the decoder and the weights of a folder.

    backend: its name, in records and errors.
    kind: the auto class of transformers; with that of classifiers, a reward model's scores stand in
        the place of logps.
    kernel: attention is `prefix_kernel`.
    hits: `logps` gives hits beside them (see `scoring.head.with_hits`).
    host_weights: these, until a trainer takes them over.
    weights: gives the tree that is scored with, on its devices.
    """

    backend: ClassVar[str] = "jax"

    def __init__(
        self,
        folder: Path,
        dtype: Dtype,
        tokens_per_forward: int,
        devices: int | None,
        ranks: Ranks = ALONE,
        kernel: bool = False,
        kind: Any = AutoModelForCausalLM,
        hits: bool = False,
    ) -> None:
        self.kernel, self.hits = kernel, hits
        self.architecture = read_architecture(folder)
        self.compute_dtype = NUMPY_DTYPES[dtype]
        self.devices = open_devices(devices, self.compute_dtype, ranks)
        self.host_weights = read_weights(folder, self.compute_dtype, kind)
        self.weights: Callable[[], Tree] = cache(
            lambda: self.devices.put_weights(self.host_weights)
        )
        self.dtype = getattr(torch, dtype)
        self.tokens_per_forward = tokens_per_forward
        self.queue = SerialQueue()
        self._rounds = Rounds(self.architecture, tokens_per_forward, self.devices.count, kernel)
        self._compile()

    def adapt(self, lora: LoraConfig) -> None:
        """Reckons with adapters beside the weights; before anything is scored."""
        self.architecture = replace(
            self.architecture, adapter_scale=lora.scale, adapter_dropout=lora.dropout
        )
        self._compile()

    def _compile(self) -> None:
        self._score = jax.jit(self.logps_with(self.architecture, hits=self.hits))
        logps_of = self.logps_with(self.architecture)

        def derivative(w: Tree, v: Tree, arrays: PackArrays) -> tuple[Array, Array]:
            # What `jax.jvp` computes, which needs more than the decoder's own gradients.
            logps, pull = jax.vjp(lambda w: logps_of(w, arrays), w)
            return logps, jax.linear_transpose(pull, logps)((v,))[0]

        self._derivative = jax.jit(derivative)

    def logps_with(
        self, architecture: Architecture, **options: Any
    ) -> Callable[[Tree, PackArrays], Array]:
        """`token_logps` of an architecture on these devices, in this dtype."""
        place: dict[str, Any] = {"dtype": self.compute_dtype, "shard": self.devices.spread}
        if self.kernel:
            place["attend"] = open_kernel(architecture, self.devices.mesh, self.devices.kind)
        return partial(token_logps, architecture, **(place | options))

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0, least: int = 0) -> Batch:
        """See `Scorer`; `least`: as in `lay_out`."""
        plan = plan_packs([group.packed_tokens for group in groups], self.tokens_per_forward)
        packs = tuple(make_pack([groups[i] for i in members]) for members in plan)
        rounds = tuple(self.lay_out(packs, least))
        return RoundsBatch(tuple(groups), packs, as_tensors(plan), noise, rounds)

    def logps(self, batch: Batch) -> Future[Logps]:
        return self.queue.submit(lambda: self._logps(batch))

    def probe(self, batch: Batch) -> Tensor:
        """The numbers of `Readout.probe` for a batch, pack by pack."""
        states = np.eye(self.architecture.hidden, dtype=self.compute_dtype)
        values = self.queue.submit(
            lambda: self._values(batch, lambda w, arrays: self._score(telling(w, states), arrays))
        )
        found = torch.cat(values.result())
        if self.hits:
            return found[:, 0]
        if found.ndim == 1:  # logps; of a reward model, hidden states [scored, H]
            return found
        return scaled(found)

    def close(self) -> None:
        super().close()
        if sys.exc_info()[0] is None:  # after an error, other ranks may never come
            leave_together()

    def derivative(self, direction: Tree, arrays: PackArrays) -> tuple[Array, Array]:
        """Logps [B, S] of a round, and their derivatives along a direction of the weights."""
        return self._derivative(self.weights(), direction, arrays)

    def lay_out(self, packs: Sequence[Pack], least: int = 0) -> Sequence[Round]:
        """The rounds of some packs, laid out as if one had `least` tokens."""
        return self._rounds.of(packs, least)

    def full_size(self, groups: Sequence[TokenGroup]) -> int:
        """The tokens of a full pack of these. A check lays out at this size, as attention takes
        another way in a small pack."""
        return min(self.tokens_per_forward, int(facts_of(groups)["packed"].sum()))

    def on_devices(self, arrays: PackArrays) -> PackArrays:
        """A round's arrays, each pack on its device."""
        of_rows, of_angles = self.devices.of_packs(), self.devices.of_packs(axis=1)
        cos, sin = put(arrays.cos, of_angles), put(arrays.sin, of_angles)
        rows = jax.tree.map(lambda row: put(row, of_rows), replace(arrays, cos=None, sin=None))
        return replace(rows, cos=cos, sin=sin)

    def _values(self, batch: Batch, program: Callable[[Tree, PackArrays], Array]) -> list[Tensor]:
        """What a program gives for the scored tokens of each pack."""
        assert isinstance(batch, RoundsBatch)
        waiting = [(r, program(self.weights(), self.on_devices(r.arrays))) for r in batch.rounds]
        return [
            per_token
            for one, values in waiting
            for per_token in of_packs(on_host(values), one, batch.packs)
        ]

    def _logps(self, batch: Batch) -> Logps:
        tokens = self._values(batch, self._score)
        sequences = [sequence_logps(t, pack) for t, pack in zip(tokens, batch.packs, strict=True)]
        places = torch.cat(batch.members).tolist()
        return scored_in_batch_order(batch.groups, places, torch.cat(tokens), torch.cat(sequences))


class JaxModel:
    """A folder opened for scoring; `check`: see `JaxScoring`."""

    def __init__(
        self,
        folder: Path,
        config: ReferenceConfig,
        ranks: Ranks,
        how: JaxDevices,
    ) -> None:
        require_packs(config.attention)
        self._folder, self._config, self._check = folder, config, how.check
        budget = config.tokens_per_forward
        self.scorer = JaxScorer(folder, config.dtype, budget, how.devices, ranks, how.kernel)
        self.vocabulary = self.scorer.architecture.vocabulary
        self.known: Mapping[str, Sequence[Tensor]] = {}

    def make_ready(self, groups: Sequence[TokenGroup]) -> tuple[ScoredBy, list[str]]:
        return make_ready(self.scorer, self._folder, self._config.dtype, groups, self._check)


def make_ready(
    scorer: JaxScorer,
    folder: Path,
    dtype: Dtype,
    groups: Sequence[TokenGroup],
    check: bool,
    shown_by: Sequence[Reference] = (),
    ranks: Ranks = ALONE,
    **how: Any,
) -> tuple[ScoredBy, list[str]]:
    """A record of how `scorer` computes `groups`, and notices. Raises ValueError for rows that it
    cannot read, and if its logps differ from those of transformers' model.

    Args:
        shown_by: references; if they were computed in the same way, the comparison is skipped.
        how: how the comparison loads and reads transformers' model.
    """
    if (images := facts_of(groups)["images"]).any():
        raise ValueError(
            f"row {groups[int(images.argmax())].row!r} has images, which "
            f"backend={scorer.backend} does not read; use torch "
            "(backend=null)"
        )
    scorer.architecture.require_length(*longest(groups))
    scored_by = ScoredBy(
        dtype,
        Attention.packed,
        scorer.devices.kind,
        scorer.tokens_per_forward,
        torch.__version__,
        transformers.__version__,
        backend=scorer.backend,
    )
    # Only the first reads all of the model for it.
    (is_known,) = ranks.any(ranks.is_first and show_packing(shown_by, folder, scored_by))
    if check and (scorer.kernel or not is_known):  # a reference does not say whether it had one
        check_parity(scorer, folder, dtype, groups, **how)
    row, tokens = longest(groups)
    if tokens <= scorer.architecture.longest:
        return scored_by, []
    limit = scorer.architecture.longest
    return scored_by, [f"row {row!r} has {tokens} tokens to read; the model is made for {limit}"]


def check_parity(
    scorer: JaxScorer,
    folder: Path,
    dtype: Dtype,
    groups: Sequence[TokenGroup],
    load: Callable[..., PreTrainedModel] = load_model,
    probe: parity.Probe = torch_logps,
) -> None:
    """Compare what `probe` gives for the longest and the shortest of `groups` with that of
    transformers' own model, on the host. Raises ValueError if they differ by more than rounding.
    """
    compared = by_length(groups)[::-1]
    actual = scorer.probe(scorer.prepare(compared, least=scorer.full_size(groups)))
    model = load(folder, dtype, on_host=True)
    expected = parity.own_logps(model, make_pack(compared), probe)
    if fault := parity.logp_difference(actual, expected, model.dtype):
        raise ValueError(
            f"backend={scorer.backend} does not compute what transformers' "
            f"{type(model).__name__} does: {fault}; use torch (backend=null), and please report it"
        )


def by_length(groups: Sequence[TokenGroup]) -> list[TokenGroup]:
    """The shortest and the longest."""
    order = facts_of(groups)["packed"].argsort(kind="stable")
    return [groups[int(order[place])] for place in (0, -1)]


def require_packs(attention: Attention) -> None:
    """Refuses what this backend does not do."""
    if attention is Attention.padded:
        raise ValueError(
            "backend=jax reads packs only; set attention=auto, or use torch (backend=null)"
        )


def of_packs(values: np.ndarray, one: Round, packs: Sequence[Pack]) -> list[Tensor]:
    """The values of each pack in a round [B, S], without fillers."""
    return [
        torch.from_numpy(values[place, : len(packs[number].targets)].copy())
        for place, number in enumerate(one.numbers)
    ]
