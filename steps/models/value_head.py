"""The head of a reward model, which reads the hidden state of a response's last token."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedModel


def value_head(model: PreTrainedModel) -> nn.Linear:
    """The head of a reward model: a linear map to one number.

    Raises:
        ValueError: the model has another head, or none.
    """
    head = getattr(model, "score", None)
    if not isinstance(head, nn.Linear) or head.out_features != 1 or head.bias is not None:
        raise ValueError(
            f"{type(model).__name__} has no head `score` that is a linear map to one number without"
            " a bias, as transformers gives to decoder models for sequence classification"
        )
    return head


def require_no_more(weights: Iterable[str], folder: Path) -> None:
    """Raise ValueError if a folder has more of a head than its matrix, by the names of its weights:
    transformers would leave it out, and so give other scores than in training."""
    more = sorted(n for n in weights if n.startswith("score.") and n != "score.weight")
    if more:
        raise ValueError(
            f"the head of {folder} has {more[0]}, and a reward model's head here is score.weight "
            "alone; take a model without it, or, as a bias adds the same to all scores, delete it"
        )


def scores_of(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """A reward model's scores, float64 [N], from hidden states [N, H]. They are computed row by
    row: in a matrix product, the rounding of a row would depend on its position."""
    return (rows.double() * value_head(model).weight.double()).sum(dim=-1)


def scaled(rows: Tensor) -> Tensor:
    """Hidden states [N, H] in float64, each scaled to a mean square of 1."""
    rows = rows.double()
    return rows / rows.square().mean(dim=-1, keepdim=True).sqrt()
