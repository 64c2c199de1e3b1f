"""Throughput, memory and utilisation of a step, which are reported as progress and not logged.

FLOPs are those of the model's mathematics, without recomputation (Chowdhery et al. 2022,
appendix B): 2 per weight and token for the forward, 2 for the gradient of the activations, 2 for
the gradient of trained weights; and 12 per layer, channel and attended pair of tokens. The head
counts only scored tokens, as it processes no others.
"""

import contextlib
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from steps.models.call_queue import SerialQueue
from steps.models.quantized import count_of
from steps.scoring.packing import Pack
from steps.scoring.scorer import Batch
from steps.shared.execution_detail import execution_detail


@execution_detail
@dataclass(frozen=True)
class PackCosts:
    """FLOPs of a forward and backward for each token, each scored token, and each attended pair of
    tokens."""

    per_token: int
    per_scored: int
    per_attended: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """The costs of a model; frozen parameters cost less."""
        embeddings = cast(nn.Embedding, model.get_input_embeddings()).weight
        head = cast("nn.Linear | None", model.get_output_embeddings())
        head = None if head is None else head.weight
        body = [p for p in model.parameters() if p is not embeddings and p is not head]
        per_token = 4 * sum(count_of(p) for p in body)
        per_token += 2 * sum(p.numel() for p in body if p.requires_grad)
        per_scored = 0
        if head is not None:
            per_scored = (6 if head.requires_grad else 4) * head.numel()
        text = model.config.get_text_config()
        return cls(per_token, per_scored, 12 * text.num_hidden_layers * text.hidden_size)

    def flops(self, pack: Pack) -> int:
        """The FLOPs of a forward and backward over `pack`."""
        attended = 0
        for segment in pack.segments:
            rows = segment.stop - segment.start
            prefix = segment.prefix_stop - segment.prefix_start
            attended += rows * prefix + rows * (rows + 1) // 2
        return (
            self.per_token * len(pack.input_ids)
            + self.per_scored * len(pack.targets)
            + self.per_attended * attended
        )


@execution_detail
@contextlib.contextmanager
def profiled(queue: SerialQueue, file: Path) -> Iterator[None]:
    """Write a Chrome trace of what the thread of `queue` does inside the block, on CPU and GPU."""
    profiler = torch.profiler.profile()
    queue.submit(profiler.start).result()
    try:
        yield
    finally:
        queue.submit(profiler.stop).result()
    profiler.export_chrome_trace(str(file))
    print(f"profile: {file}", flush=True)


@execution_detail
class Usage:
    """Measures the steps of a model. `tokens_per_forward` is the token budget of a forward, `dtype`
    the dtype of the computation."""

    def __init__(
        self,
        costs: PackCosts,
        tokens_per_forward: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._costs = costs
        self._tokens_per_forward = tokens_per_forward
        self._device = device
        self._peak = _peak_flops(device, dtype)

    def flops(self, batch: Batch) -> float:
        """The FLOPs of a forward and backward over `batch`."""
        return float(sum(map(self._costs.flops, batch.packs)))

    def report(self, batch: Batch, seconds: float) -> dict[str, float]:
        """Measurements of a step of `batch` that took `seconds`:

        `tokens_per_second` (a shared prompt counts once), `flops_per_second`,
        `mfu` (the share of the device's dense bfloat16 peak, where that is known), `occupancy` (the
        share of the forwards' token budget that was filled), `peak_memory_gb` (of the device since
        it was first used, or of the process on a CPU).
        """
        tokens = sum(len(pack.input_ids) for pack in batch.packs)
        budget = sum(max(self._tokens_per_forward, len(pack.input_ids)) for pack in batch.packs)
        flops = self.flops(batch) / seconds
        return {
            "tokens_per_second": tokens / seconds,
            "flops_per_second": flops,
            **({} if self._peak is None else {"mfu": flops / self._peak}),
            "occupancy": tokens / budget,
            "peak_memory_gb": _peak_memory(self._device) / 1e9,
        }


def _peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    from steps.shared.accelerators import accelerator  # here, so that no key holds the table

    known = accelerator(torch.cuda.get_device_name(device))
    return None if known is None else known.flops


def _peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError, StopIteration):  # getrusage begins with a parent's memory
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
