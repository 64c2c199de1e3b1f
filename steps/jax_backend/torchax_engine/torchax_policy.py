"""Training with transformers' own model, which torchax runs on JAX; experimental.

Everything but the forward is that of the JAX backend: packs of few shapes, the vector-Jacobian
product across the host, AdamW, checkpoints. So it trains the families that the decoder does, and
shares no line with the decoder.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from jax import Array

from steps.jax_backend.architecture import Architecture, other_dropouts, read_architecture
from steps.jax_backend.jax_scorer import JaxScorer, check_parity, make_ready, require_packs
from steps.jax_backend.jax_trainer import JaxPolicy
from steps.jax_backend.pack_arrays import PackArrays
from steps.jax_backend.param_tree import Tree
from steps.jax_backend.torchax_engine.torchax_model import LogpsModel
from steps.models.config import Dtype
from steps.models.ranks import Ranks
from steps.scoring.examples import TokenGroup, joined
from steps.scoring.reference import Reference
from steps.scoring.scored_by import ScoredBy
from steps.shared.checks import holding
from steps.training.config import TrainConfig
from steps.training.policy import LANGUAGE_MODEL, Role


class TorchaxScorer(JaxScorer):
    """A `JaxScorer` whose logps transformers' model computes, on one device.

    That model's own weights stay on the host and are not used.
    """

    backend: ClassVar[str] = "torchax"

    def __init__(
        self, folder: Path, dtype: Dtype, tokens_per_forward: int, role: Role = LANGUAGE_MODEL
    ) -> None:
        self._model = LogpsModel(role.load(folder, dtype, True, None).eval())
        hits = role.readout.hits
        super().__init__(folder, dtype, tokens_per_forward, devices=1, kind=role.kind, hits=hits)

    def logps_with(
        self, architecture: Architecture, **options: Any
    ) -> Callable[[Tree, PackArrays], Array]:
        return partial(self._model.of_weights, hits=options.get("hits", False))


class TorchaxPolicy(JaxPolicy):
    """A folder opened for training by `TorchaxTraining`."""

    def _open(self, dropout: bool, how: Any) -> JaxScorer:
        folder, config = self._folder, self._config
        with _as_jax_does():
            architecture = read_architecture(folder)
            require_packs(config.attention)
        _refuse(config, self._ranks, _dropped(folder, architecture) if dropout else {})
        with _as_jax_does():
            return TorchaxScorer(folder, config.dtype, config.tokens_per_forward, self._role)

    def make_ready(
        self,
        groups: Sequence[TokenGroup],
        others: Sequence[TokenGroup] = (),
        shown_by: Sequence[Reference] = (),
    ) -> tuple[ScoredBy, list[str]]:
        scorer, dtype, every = self.trainer.scorer, self._config.dtype, joined(groups, others)
        with _as_jax_does():
            found, notices = make_ready(scorer, self._folder, dtype, every, check=False)
        if self._check:
            role = self._role
            check_parity(scorer, self._folder, dtype, every, role.load, role.readout.probe)
        return found, ["backend=torchax is experimental", *notices]


def _dropped(folder: Path, architecture: Architecture) -> dict[str, float]:
    """What a model's config asks to drop in training, by the names of its settings."""
    own = architecture.attention_dropout
    return ({"attention_dropout": own} if own else {}) | other_dropouts(folder)


def _refuse(config: TrainConfig, ranks: Ranks, dropped: Mapping[str, float]) -> None:
    """Raise ValueError, which names it, for what this backend lacks."""
    asked = ", ".join(f"{name}={share}" for name, share in dropped.items())
    lacks = {
        f"trains on one device, and the step has {ranks.count}; ask for one": ranks.count > 1,
        "has no adapters; set lora=null": config.lora is not None,
        "has no bfloat16; set dtype=float32": config.dtype is Dtype.bfloat16,
        f"drops nothing, and the model asks for {asked}; set 0 in its config.json": bool(dropped),
    }
    for what in holding(lacks):
        raise ValueError(f"backend=torchax {what}, or use torch (backend=null)")


@contextmanager
def _as_jax_does() -> Iterator[None]:
    """What the JAX backend cannot read is refused in its words."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"backend=torchax reads what backend=jax does: {error}") from error
