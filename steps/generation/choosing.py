"""Choose the engine for a model: slots, if their log-probabilities equal the model's own.

The check runs at the start, on the longest and the shortest prompt of the run. It samples a few
tokens in slots and compares their log-probabilities with those of the model's own forward over
prompt and completion. It then samples the same completion alone, to see whether a completion
depends, in any bit, on others in its batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from steps.generation.alone import AloneEngine
from steps.generation.cache import attending
from steps.generation.engine import Engine, Finished, Request
from steps.generation.slots import SlotEngine
from steps.models.folders import evaluating, own_attention
from steps.models.positions import require_positions
from steps.scoring.parity import logp_difference, rescaled_rotation
from steps.shared.execution_detail import execution_detail

_TOKENS_TRIED = 16


@dataclass(frozen=True)
class EngineChoice:
    """The chosen engine.

    name: ``slots`` or ``alone``.
    batch_invariant: whether completions were the same bits alone and beside others.
    why_not: why not slots.
    facts: what else is to be known of it, as JSON values.
    """

    engine: Engine
    name: str
    batch_invariant: bool
    why_not: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def notice(self) -> str | None:
        """A notice for the user, or None if slots can be used."""
        if self.why_not is None:
            return None
        return f"each completion is written alone, which is much slower: {self.why_not}"

    def described(self) -> dict[str, Any]:
        """What drew the completions, as JSON values."""
        return {"engine": self.name, "batch_invariant": self.batch_invariant, **self.facts}


def choose_engine(
    model: PreTrainedModel,
    requests: Sequence[Request],
    weights: str = "",
    slots: int = 64,
    tokens_per_forward: int = 2048,
) -> EngineChoice:
    """Choose an engine for `requests`. The model's attention is the same afterwards.

    Raises:
        ValueError: a row, which the message names, is longer than the model's positions.
    """
    by_length = sorted(requests, key=lambda request: request.longest_sequence)
    require_positions(model, by_length[-1].row, by_length[-1].longest_sequence)
    tried = [_short(request, k) for k, request in enumerate((by_length[-1], by_length[0]))]
    engine = SlotEngine(model, weights, slots, tokens_per_forward)
    fault = rescaled_rotation(model, by_length[-1].longest_sequence)
    fault, drawn = (fault, []) if fault else _try(engine, tried)
    facts = _facts(model)
    if fault:
        return EngineChoice(AloneEngine(model, weights), "alone", True, fault, facts)
    alone = [finished for request in tried for finished in engine.sample([request], weights)]
    invariant = sorted(map(_told, drawn)) == sorted(map(_told, alone))
    return EngineChoice(engine, "slots", invariant, facts=facts)


def _facts(model: PreTrainedModel) -> dict[str, Any]:
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _short(request: Request, k: int) -> Request:
    tokens = min(request.max_new_tokens, _TOKENS_TRIED)
    return replace(request, k=k, max_new_tokens=tokens, temperature=1.0, stop_ids=())


def _told(finished: Finished) -> str:
    return repr(asdict(finished))


def _try(engine: SlotEngine, requests: Sequence[Request]) -> tuple[str | None, list[Finished]]:
    """The fault of slots for these requests, or None; and the sampled completions."""
    model = engine.model
    try:
        drawn = sorted(engine.sample(requests, engine.weights), key=lambda finished: finished.k)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # A model may raise any error here; it can still be run in another way.
        return _takes_no_slots(model, error), []
    actual = torch.tensor([logp for finished in drawn for logp in finished.logps])
    expected = torch.cat([own_logps(model, *both) for both in zip(requests, drawn, strict=True)])
    difference = logp_difference(actual.double(), expected.double(), model.dtype)
    return difference and f"in slots, {type(model).__name__} differs: {difference}", drawn


@torch.no_grad()
def own_logps(model: PreTrainedModel, request: Request, finished: Finished) -> Tensor:
    """The logps of what was drawn by the model's own forward, on the host."""
    ids = torch.tensor([[*request.prompt_ids, *finished.ids]], device=model.device)
    with evaluating(model), attending(model, own_attention(model)):
        logits = model(input_ids=ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1]
    logps = logits.double().log_softmax(dim=-1)
    return logps.gather(1, ids[0, len(request.prompt_ids) :, None])[:, 0].cpu()


@execution_detail
def _takes_no_slots(model: PreTrainedModel, error: Exception) -> str:
    return f"{type(model).__name__} does not take slots ({type(error).__name__}: {error})"
