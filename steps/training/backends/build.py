"""The backend for as many devices as there are."""

from transformers import PreTrainedModel

from steps.training.backends.torch_backend import TorchBackend
from steps.training.config import OptimizerConfig
from steps.training.ranks import Ranks


def build_backend(
    model: PreTrainedModel,
    tokens_per_forward: int,
    ranks: Ranks,
    optimizer: OptimizerConfig | None = None,
    master_weights: bool = True,
    dropout: bool = False,
) -> TorchBackend:
    """A `TorchBackend`, or on several ranks the one that shares the model and the work with the
    others; arguments are theirs."""
    settings = (optimizer, master_weights, dropout)
    if ranks.count == 1:
        return TorchBackend(model, tokens_per_forward, *settings)
    from steps.training.backends.sharded_backend import ShardedBackend

    return ShardedBackend(model, tokens_per_forward, ranks, *settings)
