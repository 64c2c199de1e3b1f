"""A model folder for training: open it, prepare it for its examples, and save the result.

A :class:`Role` says what kind of model is trained (a language model, a reward model). A backend
runs it: torch (`TorchPolicy`), or the backend of the config.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from steps.models.activation_checkpointing import checkpoint_activations
from steps.models.adapted import save_adapted
from steps.models.adapters import add_adapter, merge_adapter
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig, Quantization
from steps.models.folders import became_blind, load_model, save_model, vocabulary_size
from steps.models.positions import beyond_training
from steps.models.quantized import (
    count_of,
    put_rounded_weights,
    quantization_of,
    rounded_weights,
)
from steps.models.ranks import Ranks
from steps.scoring.architectures.compiled_layers import compile_layers
from steps.scoring.architectures.routing import find_balancing
from steps.scoring.config import Attention
from steps.scoring.examples import TokenGroup, joined, longest
from steps.scoring.parity import choose_attention, slow_on_gpu
from steps.scoring.reference import Reference, show_packing
from steps.scoring.scored_by import ScoredBy, model_digest
from steps.shared.execution_detail import execution_detail
from steps.training.config import TrainConfig, UpdateConfig
from steps.training.trainer import (
    TRAINED_LOGPS,
    TrainedReadout,
    Trainer,
    build_trainer,
    normalised,
)

if TYPE_CHECKING:
    from peft import PeftModel

    from steps.training.beside.live_reference import LiveReference


class Policy(Protocol):
    """A model that is opened for training."""

    @property
    def trainer(self) -> Trainer: ...

    @property
    def vocabulary(self) -> int: ...

    def make_ready(
        self,
        groups: Sequence[TokenGroup],
        others: Sequence[TokenGroup] = (),
        shown_by: Sequence[Reference] = (),
    ) -> tuple[ScoredBy, list[str]]:
        """Choose how the model computes examples. Returns a record of that, and notices for the
        user. Call it before the first batch is prepared.

        Args:
            others: other examples that the model will read: held-out ones, and those of a loss's
                baseline.
            shown_by: references of all these examples, with which the run compares its first logps.
                If they were packed, the check of packing is skipped.
        """
        ...

    def trained(self) -> Mapping[str, Tensor]:
        """The weights that `save` needs after the trainer is closed; all ranks must call this.
        Empty where it takes those of the model itself."""
        ...

    def save(self, trained: Mapping[str, Tensor], output: Path, base: str | None = None) -> None:
        """Write the trained model as a folder; only the first rank calls this.

        Args:
            base: the digest of the artifact that training began from; if it is known, adapters may
                be written without their base.
        """
        ...


@dataclass(frozen=True)
class Role:
    """The kind of model that is trained.

    load: loads the model of a folder, in a dtype, on the host if the third argument is true, with
        rounded weights if the last says so.
    kind: the auto class of transformers with such models.
    adapt: adds adapters to its layers, in place, and sets which parameters are trained.
    readout: the output of the model that the loss uses.
    keeps_adapter: adapters are also saved separately, in `peft`'s format.
    reference: lets the model as it was before training compute beside it, for the loss; of the
        model without its adapters if the second argument is true.
    """

    load: Callable[[Path, Dtype, bool, Quantization | None], PreTrainedModel] = load_model
    kind: Any = AutoModelForCausalLM
    adapt: "Callable[[PreTrainedModel, LoraConfig, int], PeftModel]" = add_adapter
    readout: TrainedReadout = TRAINED_LOGPS
    keeps_adapter: bool = True
    reference: "Callable[[PreTrainedModel, bool], LiveReference] | None" = None


LANGUAGE_MODEL = Role()


def open_policy(
    folder: Path,
    config: TrainConfig,
    ranks: Ranks,
    dropout: bool = False,
    role: Role = LANGUAGE_MODEL,
) -> Policy:
    """Open the model of a folder with the backend of `config`.

    Args:
        dropout: whether the model's own dropout is on.
    """
    config.require_processes(ranks.count)
    if config.z_loss_coef:
        role = replace(role, readout=normalised(role.readout))
    if config.backend is not None:
        return config.backend.open_policy(folder, config, ranks, dropout, role)
    return TorchPolicy(folder, config, ranks, dropout, role, config.compile_layers)


class TorchPolicy:
    """A transformers model, optionally with adapters, on one device or sharded over ranks.

    Args:
        dropout: whether the model's own dropout is on.
        is_compiled: whether the layers are compiled.
    """

    def __init__(
        self,
        folder: Path,
        config: UpdateConfig,
        ranks: Ranks,
        dropout: bool = False,
        role: Role = LANGUAGE_MODEL,
        is_compiled: bool = False,
    ) -> None:
        self._folder, self._config, self._ranks, self._role = folder, config, ranks, role
        self._is_compiled = is_compiled
        if config.deterministic and torch.cuda.is_available():
            require_deterministic_kernels()
        self._model = role.load(folder, config.dtype, ranks.count > 1, config.quantization)
        self._adapted = self._adapt(self._model)
        self.vocabulary = vocabulary_size(self._model)
        self._reference = self._beside()
        readout = role.readout
        if self._reference is not None:
            readout = self._reference.beside(readout)
        self.trainer = build_trainer(
            self._model,
            config.tokens_per_forward,
            ranks,
            config.optimizer,
            config.master_weights,
            dropout,
            readout,
            config.gather_once,
        )

    def make_ready(
        self,
        groups: Sequence[TokenGroup],
        others: Sequence[TokenGroup] = (),
        shown_by: Sequence[Reference] = (),
    ) -> tuple[ScoredBy, list[str]]:
        model, config, ranks = self._model, self._config, self._ranks
        self.trainer.balancing, unbalanced = self.trainer.scorer.examine(
            lambda model: find_balancing(model, config.router_aux_loss_coef)
        )
        packed = ScoredBy.of(model, config.dtype, Attention.packed, config.tokens_per_forward)
        # Only the first rank computes the digest of the model's files.
        (is_known,) = ranks.any(ranks.is_first and show_packing(shown_by, self._folder, packed))
        every, scorer = joined(groups, others), self.trainer.scorer
        packing = choose_attention(scorer, every, config.attention, ranks, is_known)
        if self._reference is not None:
            self._reference.read_like(model)
        how, is_packed = config.activation_checkpointing, packing.attention is Attention.packed
        if self._is_compiled and is_packed:
            compile_layers(model, how)
        elif how is ActivationCheckpointing.full or is_packed:
            checkpoint_activations(model, how)
        plain = self._is_compiled and not is_packed
        slow = slow_on_gpu(model, config.tokens_per_forward)
        told = (
            packing.notice,
            unbalanced,
            beyond_training(model, *longest(every)),
            slow,
            "the layers are not compiled, as the model is not packed" if plain else None,
            _rounded(model),
            became_blind(model, AutoConfig.from_pretrained(self._folder, trust_remote_code=False)),
        )
        scored_by = replace(packed, attention=packing.attention)
        return scored_by, [notice for notice in told if notice]

    def trained(self) -> Mapping[str, Tensor]:
        return self.trainer.get_weights().result() if self._is_saved_by_another else {}

    def save(self, trained: Mapping[str, Tensor], output: Path, base: str | None = None) -> None:
        model, adapted = self._model, self._adapted
        if trained:
            model = self._role.load(self._folder, self._config.dtype, True, None)
            put_rounded_weights(self._model, model)
            adapted = self._adapt(model)
            for name, value in trained.items():  # no copies of what may be larger than the memory
                parameter = model.get_parameter(name)
                parameter.data = value.to(parameter.dtype)
        if adapted is not None and self._role.keeps_adapter:
            save_trained(adapted, output, self._folder, self._config, base)
            return
        model = model if adapted is None else merge_adapter(adapted)
        save_model(model, output, tokenizer_from=self._folder)

    def _beside(self) -> "LiveReference | None":
        """The reference that computes beside the policy, if the role has one."""
        if (reference := self._role.reference) is None:
            return None
        config = self._config
        if config.lora is not None and not config.lora.modules_to_save:
            return reference(self._model, True)
        other = self._role.load(self._folder, config.dtype, False, config.quantization)
        return reference(other, False)

    @property
    def _is_saved_by_another(self) -> bool:
        """Whether this rank's model is only a shard, or has rounded weights."""
        return self._ranks.count > 1 or self._config.quantization is not None

    def _adapt(self, model: PreTrainedModel) -> "PeftModel | None":
        lora = self._config.lora
        return None if lora is None else self._role.adapt(model, lora, self._config.seed)


def save_trained(
    adapted: "PeftModel", output: Path, folder: Path, config: UpdateConfig, base: str | None
) -> None:
    """`save_adapted` for a model that was trained from a `folder` with a `config`."""
    assert config.lora is not None
    weights = model_digest(folder)
    save_adapted(adapted, output, folder, weights, base, config.lora, config.dtype)


@execution_detail
def _rounded(model: PreTrainedModel) -> str | None:
    """A notice about the share of weights that are rounded, if any are, and about what is saved."""
    if (quantization := quantization_of(model)) is None:
        return None
    rounded = sum(count_of(weight) for _, weight in rounded_weights(model))
    share = rounded / sum(map(count_of, model.parameters()))
    return (
        f"{100 * share:.0f} % of the weights are rounded to 4 bits ({quantization}); the saved "
        "model has these rounded weights, in its dtype, with the adapters added to them"
    )


def require_deterministic_kernels() -> None:
    """Let this process use only operations of a GPU that give the same bits every time.

    Call it before the first matrix product on the GPU, when cuBLAS allocates its workspaces.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
