"""The client of a server that speaks Tinker's API: the same calls as `Local`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steps.primitives.local import Local
from steps.primitives.pending import Pending
from steps.tinker_backend.tinker_choice import require_alike
from steps.tinker_backend.tinker_trainer import TinkerTrainer
from steps.tinker_backend.tinker_wire import NAMED, Row, Sampled, Wire
from steps.training.config import OptimizerConfig
from steps.training.trainer import StepResult, require_finite_loss

LogpsLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps logps, labels and loss_mask of a batch, each [sequences, tokens], to a scalar."""


class Remote(Local):
    """An adapter that a server trains, behind the calls of `Local`.

    A batch has input_ids, labels and loss_mask, each [sequences, tokens]; a loss gets the logps of
    labels in the place of logits, computed by the server. It may also be the name of one that the
    server computes by itself, in one pass in the place of two: "cross_entropy", the sum of
    -logp x loss_mask; "importance_sampling" or "ppo", of which a batch has logprobs and advantages,
    too. Servers divide these, and not those of one's own, by numbers of their own.

    A checkpoint's state stays on the server; `get_weights` gives the adapter, and no weights can be
    loaded but those of a checkpoint. No norms of gradients are known, so results have none.

    Args:
        base_model: the server's name of the model.
        optimizer: AdamW, with max_grad_norm=None and adam_epsilon=1e-12: servers multiply gradients
            by factors of their own.
        rank, seed: of the adapter.
        address: of the server; by default TINKER_BASE_URL of the environment, or Tinker's own.
        patience: seconds without an answer after which a call raises TimeoutError.

    Raises ValueError if TINKER_API_KEY is not in the environment.
    """

    def __init__(
        self,
        base_model: str,
        optimizer: OptimizerConfig,
        loss: LogpsLoss | str = "cross_entropy",
        *,
        rank: int = 32,
        seed: int = 0,
        address: str | None = None,
        directory: Path | str = "checkpoints",
        patience: float = 3600.0,
    ) -> None:
        require_alike(optimizer)
        self._wire = Wire(base_model, rank, seed, address, patience)
        engine = _RowsEngine(self._wire, optimizer)
        super().__init__(loss=loss, backend=engine, directory=directory)
        self._queue = engine.scorer.queue

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        count: int = 1,
        *,
        max_tokens: int,
        **settings: Any,
    ) -> Pending[list[list[Sampled]]]:
        """`count` completions of each prompt (token ids), by the weights at this call.

        Args:
            settings: temperature, top_p, top_k, seed, and `stop`, a list of token ids.
        """
        asked = {"max_tokens": max_tokens, **settings}
        return Pending(self._queue.submit(lambda: self._wire.sample(prompts, count, asked)))


class _RowsEngine(TinkerTrainer):
    """Takes batches of arrays by name, beside those that `prepare` makes of groups."""

    def _forward_backward(self, batch: Any, loss: Any) -> StepResult:
        if not isinstance(batch, Mapping):
            return super()._forward_backward(batch, loss)
        arrays = {name: torch.as_tensor(values) for name, values in batch.items()}
        masks = arrays["loss_mask"]
        if isinstance(loss, str):
            return self._named(arrays, loss)
        rows = _rows(arrays, {})
        every = self._wire.logps(rows)
        logps = torch.zeros(masks.shape)
        for row, values in zip(logps, every, strict=True):
            row[: len(values)] = values
        logps.requires_grad_()
        with torch.enable_grad():
            value = loss(logps, arrays["labels"], masks)
            (gradient,) = torch.autograd.grad(value, logps)
        result = require_finite_loss(value.detach())
        parts = [part[: len(values)] for part, values in zip(gradient, every, strict=True)]
        self._updates.add(rows, every, parts)
        return result

    def _named(self, arrays: Mapping[str, Tensor], loss: str) -> StepResult:
        """Add the gradient of a loss that the server computes."""
        if loss not in NAMED:
            raise ValueError(f"loss must be a function or one of {', '.join(NAMED)}, got {loss!r}")
        if is_plain := loss == "cross_entropy":
            others = {"weights": arrays["loss_mask"].float()}
        else:
            advantages = arrays["advantages"] * arrays["loss_mask"]
            others = {"logprobs": arrays["logprobs"], "advantages": advantages}
        rows = _rows(arrays, others)
        self._updates.is_named = True
        value = torch.zeros((), dtype=torch.float64)
        for row, logps in zip(rows, self._wire.named(rows, loss, {}), strict=True):
            given = [torch.tensor(row.others[name]).double() for name in others]
            if is_plain:
                value -= (logps * given[0]).sum()
                continue
            ratios = (logps - given[0]).exp()
            gains = ratios * given[1]
            if loss == "ppo":
                gains = torch.minimum(gains, ratios.clamp(0.8, 1.2) * given[1])
            value -= gains.sum()
        return require_finite_loss(value)


def _rows(arrays: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> list[Row]:
    """The rows of a batch, each up to its last scored token, or with its first token if it has
    none."""
    rows = []
    for number, mask in enumerate(arrays["loss_mask"]):
        scored = mask.nonzero()
        cut = slice(int(scored.max()) + 1 if len(scored) else 1)
        ids, targets = (arrays[name][number, cut].tolist() for name in ("input_ids", "labels"))
        rows.append(Row(ids, targets, {n: x[number, cut].tolist() for n, x in others.items()}))
    return rows
