"""The head of a reward model, which reads the hidden state of a response's last token."""

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


def scores_of(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """A reward model's scores, float64 [N], from hidden states [N, H]. They are computed row by
    row: in a matrix product, the rounding of a row would depend on its position."""
    return (rows.double() * value_head(model).weight.double()).sum(dim=-1)


def scaled(rows: Tensor) -> Tensor:
    """Hidden states [N, H] in float64, each scaled to a mean square of 1."""
    rows = rows.double()
    return rows / rows.square().mean(dim=-1, keepdim=True).sqrt()
