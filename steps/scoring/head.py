"""From hidden states to log-probabilities of scored tokens, and back, in three matrix products:
the logits, the gradient of the hidden states, and the gradient of the head's weight.

For the logits z of a row with target y, log p = z_y - m - log s, where m = max z and
s = sum exp(z - m). If g is the gradient of the loss by log p, its gradient by the logits is

    g (onehot_y - exp(z - m) / s)  =  -g/s (exp(z - m) - s onehot_y)

One buffer holds the logits, then the exponentials, then (after S subtractions) the gradient up to a
factor per row. That factor is applied to the small matrices on both sides of the product. So no
second tensor is as large as the logits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from steps.scoring.gradients import add_gradient, add_product, is_plain
from steps.shared.matmul import linear

_FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
_DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")
_SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""The names of factors, divisors and caps of logits in configs (Cohere, Falcon-H1, Granite,
Inkling, Gemma, RecurrentGemma, xLSTM)."""


@dataclass(frozen=True)
class Kernels:
    """Compiled functions that do what `_softmax` and `_by_logits` do. Each passes over the logits
    once or twice; operations one after the other read and write them six times or more."""

    softmax: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]]
    by_logits: Callable[..., Tensor]


_KERNELS: WeakKeyDictionary[PreTrainedModel, Kernels] = WeakKeyDictionary()


@dataclass(frozen=True)
class Head:
    """A model's output layer, and the transforms that its architecture applies to the logits.

    scale: a factor of the logits.
    soft_cap: the scaled logits are capped to (-soft_cap, soft_cap) by a hyperbolic tangent.
    kernels: what computes `softmax` and `softmax_backward`; None: PyTorch's operations.
    """

    module: nn.Module
    scale: float = 1.0
    soft_cap: float | None = None
    kernels: Kernels | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the layer is an unmodified `nn.Linear`."""
        return is_plain(self.module, nn.Linear)

    def rows_within(self, budget: int) -> int:
        """How many rows of logits fit into `budget` bytes."""
        weight: Any = self.module.weight
        accurate = torch.promote_types(weight.dtype, torch.float32)
        return max(1, budget // (weight.shape[0] * accurate.itemsize))

    def logits(self, rows: Tensor) -> Tensor:
        """The transformed logits [S, V] of `rows` [S, H], in the dtype of :meth:`logps`."""
        logits = self._of_module(rows).to(_accurate(rows))
        return _transformed(logits, self.scale, self.soft_cap)[0]

    def logps(self, rows: Tensor, targets: Tensor) -> Tensor:
        """Log-probabilities [S] of `targets` [S] from `rows` [S, H], differentiable by autograd.

        In float32, or in float64 for a float64 model.
        """
        return _TargetLogps.apply(self.logits(rows), targets)[0]

    def logps_and_hits(self, rows: Tensor, targets: Tensor) -> Tensor:
        """The same with hits beside them, [S, 2]; see :func:`with_hits`."""
        return with_hits(*_TargetLogps.apply(self.logits(rows), targets))

    def normalised(self, rows: Tensor, targets: Tensor) -> Tensor:
        """What :func:`with_normalisers` gives of them, [S, 3]."""
        return with_normalisers(self.logits(rows), targets)

    def softmax(self, rows: Tensor, targets: Tensor) -> "Softmax":
        """The forward of a plain head, without autograd; `softmax_backward` is its backward."""
        compute = _softmax if self.kernels is None else self.kernels.softmax
        logits, dtype = self._of_module(rows), _accurate(rows)
        found = compute(logits, targets, dtype, self.scale, self.soft_cap)
        return Softmax(self, rows, targets, *found)

    def _of_module(self, rows: Tensor) -> Tensor:
        """The layer's own logits. Some models hand over states that are more accurate than the
        layer's weight (Mamba)."""
        weight: Any = self.module.weight
        return self.module(rows.to(weight.dtype))


@dataclass
class Softmax:
    """A plain head's forward over a chunk of rows, kept until the loss of the chunk is known."""

    head: Head
    rows: Tensor  # [S, H]
    targets: Tensor  # [S]
    exponentials: Tensor  # [S, V]
    sums: Tensor  # [S]
    logps: Tensor  # [S]
    gaps: Tensor  # [S]
    squashed: Tensor | None  # [S, V]

    def logps_and_hits(self) -> Tensor:
        """The logps with hits beside them, [S, 2]; see :func:`with_hits`."""
        return with_hits(self.logps, self.gaps)

    def aligned(self) -> Tensor:
        """log p(y) − log Σ_v p(v)², [S]: beside the expected probability of a sampled token."""
        norms = torch.linalg.vector_norm(self.exponentials, dim=1)
        return self.logps - 2 * (norms / self.sums).log()


def softmax_backward(softmax: Softmax, logp_gradients: Tensor) -> Tensor:
    """The gradient of the rows [S, H]; adds the gradients of the head's parameters to `.grad`.

    `logp_gradients` [S] are the gradients of the loss by the logps. Overwrites the buffers of
    `softmax`, so call it once. (It is a function and not a method, so that a step that only scores
    does not reach it.)
    """
    module: Any = softmax.head.module
    weight, bias = module.weight, module.bias
    kernels, targets = softmax.head.kernels, softmax.targets
    compute = _by_logits if kernels is None else kernels.by_logits
    z = compute(softmax.exponentials, softmax.sums, targets, softmax.squashed, weight.dtype)
    factors = logp_gradients.to(softmax.sums.dtype) / softmax.sums
    factors = factors.mul_(-softmax.head.scale)[:, None]
    if weight.requires_grad:
        add_product(weight, z.t(), (softmax.rows * factors).to(weight.dtype))
    if bias is not None and bias.requires_grad:
        add_gradient(bias, (z.t() @ factors.to(z.dtype))[:, 0])
    return linear(z, weight.t()).mul_(factors)


def output_head(model: PreTrainedModel) -> Head:
    """The head of `model`, with the transforms that its config names.

    Raises ValueError for a model without a head. The parity check finds transforms that the config
    names otherwise.
    """
    module = model.get_output_embeddings()
    if module is None:
        raise ValueError(f"{type(model).__name__} has no language-model head")
    config = model.config.get_text_config()

    def said(names: Sequence[str]) -> list[float]:
        values = (getattr(config, name, None) for name in names)
        return [value for value in values if isinstance(value, int | float) and value]

    return Head(
        module,
        scale=math.prod(said(_FACTORS)) / math.prod(said(_DIVISORS)),
        soft_cap=next(iter(said(_SOFT_CAPS)), None),
        kernels=_KERNELS.get(model),
    )


def compile_softmax(model: PreTrainedModel, compiled: Callable[..., Any]) -> None:
    """Let the head of `model` compute its softmax, and the gradient of the logits, by `compiled`
    functions. The products stay what they are."""
    _KERNELS[model] = compiled_kernels(compiled)


def compiled_kernels(compiled: Callable[..., Any]) -> Kernels:
    """The kernels that the compiler `compiled` makes, on their first use."""
    return Kernels(compiled(_softmax_at_once), compiled(_by_logits_at_once))


def _softmax(
    logits: Tensor, targets: Tensor, dtype: torch.dtype, scale: float, soft_cap: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """What `_exponentials` gives for transformed logits of `dtype`; and the tanh if capped."""
    transformed, squashed = _transformed(logits.to(dtype), scale, soft_cap)
    return *_exponentials(transformed, targets), squashed


def _softmax_at_once(
    logits: Tensor, targets: Tensor, dtype: torch.dtype, scale: float, soft_cap: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """`_softmax` with gaps of the layer's own logits: where a kernel computes a transformed one for
    the second time, it may round it differently."""
    gaps = gaps_of(logits, targets)
    z, sums, logps, _, squashed = _softmax(logits, targets, dtype, scale, soft_cap)
    return z, sums, logps, gaps, squashed


def _by_logits(
    z: Tensor, sums: Tensor, targets: Tensor, squashed: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The gradient of log p by the layer's logits, times -s / scale, of `dtype`: in place of the
    exponentials `z`."""
    z[torch.arange(len(z), device=z.device), targets] -= sums
    if squashed is not None:
        z.mul_(squashed.square_().neg_().add_(1))
    return z.to(dtype)


def _by_logits_at_once(
    z: Tensor, sums: Tensor, targets: Tensor, squashed: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """`_by_logits` without indices, which would part its kernel in three, and not in place."""
    is_target = torch.arange(z.shape[1], device=z.device) == targets[:, None]
    z = torch.where(is_target, z - sums[:, None], z)
    return (z if squashed is None else z * (1 - squashed.square())).to(dtype)


def _transformed(
    logits: Tensor, scale: float, soft_cap: float | None
) -> tuple[Tensor, Tensor | None]:
    """The transformed logits, computed in place without autograd; and the tanh if capped."""
    if torch.is_grad_enabled() and logits.requires_grad:
        logits = logits * scale if scale != 1 else logits
        if soft_cap is None:
            return logits, None
        return torch.tanh(logits / soft_cap) * soft_cap, None
    if scale != 1:
        logits.mul_(scale)
    if soft_cap is None:
        return logits, None
    squashed = logits.div_(soft_cap).tanh_()
    return squashed * soft_cap, squashed


def with_hits(logps: Tensor, gaps: Tensor) -> Tensor:
    """Logps [n] of targets, and beside each its hit, [n, 2]: 1 if no logit of the row is larger
    than the target's, else 0. `gaps` [n] are the targets' logits minus the largest of their rows.
    """
    return torch.stack([logps, (gaps == 0).to(logps.dtype)], dim=-1)


def with_normalisers(logits: Tensor, targets: Tensor) -> Tensor:
    """Logps of targets [n] with hits, and log Σ_v exp z_v, which has gradients, too: [n, 3], from
    logits z [n, V], which are overwritten."""
    at_targets = logits[torch.arange(len(targets), device=logits.device), targets]
    logps, gaps = _TargetLogps.apply(logits, targets)
    return torch.cat([with_hits(logps, gaps), (at_targets - logps)[:, None]], dim=1)


def gaps_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The `gaps` of `with_hits`, [n], without gradients; logits [n, V] and targets [n]."""
    logits = logits.detach()
    return logits.gather(-1, targets[..., None])[..., 0] - logits.amax(dim=-1)


class _TargetLogps(torch.autograd.Function):
    """Log-softmax at the targets, and their gaps, which have no gradient. The backward turns the
    logits' buffer into their gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        exponentials, sums, logps, gaps = _exponentials(logits.detach(), targets)
        ctx.save_for_backward(exponentials, sums, targets)
        ctx.mark_non_differentiable(gaps)
        return logps, gaps

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        exponentials, sums, targets = ctx.saved_tensors
        exponentials[torch.arange(len(targets), device=targets.device), targets] -= sums
        return exponentials.mul_(-(gradients[0] / sums)[:, None]), None


def _exponentials(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """exp(z - max z) in place, its sum over each row, the log-probability of the target y, and its
    gap z_y - max z."""
    logits.sub_(logits.amax(dim=-1, keepdim=True))
    gaps = logits.gather(1, targets[:, None])[:, 0]
    sums = logits.exp_().sum(dim=-1)
    return logits, sums, gaps - sums.log(), gaps


def _accurate(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)
