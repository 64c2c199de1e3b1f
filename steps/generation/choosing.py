"""Choose the engine for a model: slots, if their log-probabilities equal the model's own.

A check runs at the start, on the longest and the shortest prompt of the run. It samples a few
tokens in slots and compares their log-probabilities with those of the model's own forward over
prompt and completion; if the model has a window, also where completions will exceed it. Where they
differ, each completion is written alone; and without a cache, by the model's own forward of all
before each token, if transformers' cache of the model does not pass that check either.

`choose_engine` serves runs that sample again and again. It also samples the same completions
alone, to see whether a completion depends, in any bit, on others in its batch. `sample_checked`
samples once, where such a check would take longer than the work. So it tries very few tokens
first, and then compares the end of the longest of what it has sampled.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, cycle, islice
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from steps.generation.alone import AloneEngine
from steps.generation.cache import attending
from steps.generation.draws import cuts_of, log_share
from steps.generation.engine import Engine, Finished, Request
from steps.generation.slots import SlotEngine
from steps.models.folders import evaluating, own_attention
from steps.models.positions import require_positions
from steps.models.ranks import ALONE, Ranks
from steps.scoring.architectures.in_float32 import found_in_float32
from steps.scoring.parity import logp_difference, rescaled_rotation, scaled_by_place
from steps.shared.execution_detail import execution_detail

_TOKENS_TRIED = 16
_TOKENS_BEFORE = 2
"""Tokens tried at the start if what is sampled is compared too: one from a prompt, one decoded."""

_ROUNDING = 1e-3
"""By how much rounding may change a probability, as a share of it, at temperature 1."""

_LACKING = (RuntimeError, MemoryError)
"""What a model of 16 bits raises that lacks an operation, or the memory, to compute in float32."""


@dataclass(frozen=True)
class EngineChoice:
    """The chosen engine.

    name: ``slots`` or ``alone``.
    batch_invariant: whether completions were the same bits alone and beside others.
    why_not: why not slots.
    why_rounded: why slots of a model of 16 bits were compared in its own dtype only.
    facts: what else is to be known of it, as JSON values.
    """

    engine: Engine
    name: str
    batch_invariant: bool
    why_not: str | None = None
    why_rounded: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def notice(self) -> str | None:
        """A notice for the user; None if slots are used, and were compared as exactly as they can
        be."""
        return _notice(self.why_not, self.why_rounded)

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
    engine = SlotEngine(model, weights, slots, tokens_per_forward)
    tried = _try_some(engine, requests, _TOKENS_TRIED)
    facts = _facts(model)
    if tried.fault:
        alone, why_not = _alone(model, weights, requests, tried.fault)
        return EngineChoice(alone, "alone", True, why_not, facts=facts)
    facts |= {"replays": True} if engine.replays else {}
    alone = [finished for one in tried.requests for finished in engine.sample([one], weights)]
    invariant = sorted(map(_told, tried.drawn)) == sorted(map(_told, alone))
    return EngineChoice(engine, "slots", invariant, None, tried.why_rounded, facts)


def sample_checked(
    engine: SlotEngine,
    requests: Sequence[Request],
    own: Sequence[Request],
    told: Callable[[int], None],
    ranks: Ranks = ALONE,
) -> tuple[list[Finished], str | None]:
    """The completions of the requests `own` in slots; alone on all ranks if slots are not right on
    one. Also returns a notice for the user, as `EngineChoice` has one.

    Args:
        requests: those of all ranks.
        told: called with the number of completions so far.

    Raises:
        ValueError: a row, which the message names, is longer than the model's positions.
    """
    # In half precision a difference at the end of a long completion could be rounding.
    at_end = engine.model.dtype in (torch.float32, torch.float64)
    # Where tokens are left out, the end shows less, as rounding may leave out another one.
    shows_enough = at_end and not any(request.is_truncated for request in requests)
    tried = _try_some(engine, requests, _TOKENS_BEFORE if shows_enough else _TOKENS_TRIED)
    done: list[Finished] = []
    if (fault := _any(tried.fault, ranks)) is None:
        done = _sampled(engine, own, told)
        fault = _any(_fault_at_end(engine.model, own, done) if at_end else None, ranks)
    if fault is not None:
        alone, fault = _alone(engine.model, engine.weights, requests, fault)
        done = _sampled(alone, own, told)
    return done, _notice(fault, tried.why_rounded)


def _alone(
    model: PreTrainedModel, weights: str, requests: Sequence[Request], fault: str
) -> tuple[AloneEngine, str]:
    """The engine for a model with this `fault` of slots, and all faults."""
    alone = AloneEngine(model, weights)
    of_cache, _ = _try(alone, _some(model, requests, _TOKENS_TRIED), "with transformers' cache")
    if of_cache is None:
        return alone, fault
    return AloneEngine(model, weights, has_cache=False), _without_cache(fault, of_cache)


@execution_detail
def _without_cache(fault: str, of_cache: str) -> str:
    return f"{fault}; and all is read again for each token, which is slower still: {of_cache}"


@execution_detail
def _notice(why_not: str | None, why_rounded: str | None) -> str | None:
    """A notice for the user that no slots are used, or that rounding may hide a fault of theirs."""
    if why_not is not None:
        return f"each completion is written alone, which is much slower: {why_not}"
    if why_rounded is None:
        return None
    return (
        "that the model writes in slots what it writes alone was compared in its own dtype only, "
        f"whose rounding can hide a difference, and not in float32: {why_rounded}"
    )


def _any(fault: str | None, ranks: Ranks) -> str | None:
    return next((found for found in ranks.gather(fault) if found), None)


def _sampled(
    engine: Engine, requests: Sequence[Request], told: Callable[[int], None]
) -> list[Finished]:
    done: list[Finished] = []
    for finished in engine.sample(requests, engine.weights):
        done.append(finished)
        told(len(done))
    return done


def _fault_at_end(
    model: PreTrainedModel, requests: Sequence[Request], done: Sequence[Finished]
) -> str | None:
    """The fault of slots at the end of the longest sequence and of the longest completion."""
    if not done:
        return None
    asked = {(request.row, request.k): request for request in requests}
    by_length = [(asked[finished.row, finished.k], finished) for finished in done]
    by_length.sort(key=lambda pair: len(pair[0].prompt_ids) + len(pair[1].ids))
    most = max(by_length, key=lambda pair: len(pair[1].ids))
    pairs = [by_length[-1]] if most is by_length[-1] else [by_length[-1], most]
    return _difference(model, pairs, "in slots")


@dataclass(frozen=True)
class _Tried:
    """What the check at the start has found: a fault of slots, or None; the requests that were
    tried, and their completions; and why the comparison was not made in float32, if so."""

    fault: str | None
    requests: Sequence[Request]
    drawn: Sequence[Finished]
    why_rounded: str | None


def _try_some(engine: SlotEngine, requests: Sequence[Request], tokens: int) -> _Tried:
    """Try slots on the longest and the shortest request.

    Raises ValueError for a row that is longer than the model's positions.
    """
    longest = max(requests, key=lambda request: request.longest_sequence)
    require_positions(engine.model, longest.row, longest.longest_sequence)
    tried = _some(engine.model, requests, tokens)
    why_rounded, fault = None, rescaled_rotation(engine.model, longest.longest_sequence)
    forward = max(longest.longest_sequence, engine.slots, engine.tokens_per_forward)
    fault = fault or scaled_by_place(engine.model, forward)
    # The rounding of a model of 16 bits could hide a fault.
    if fault is None:
        in_float32, why_rounded = found_in_float32(
            engine.model, lambda: _try(engine, tried, "in slots", _LACKING)
        )
        fault = in_float32[0] if in_float32 else None
    fault, drawn = (fault, []) if fault else _try(engine, tried, "in slots")
    return _Tried(fault, tried, drawn, why_rounded)


def _facts(model: PreTrainedModel) -> dict[str, Any]:
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _some(model: PreTrainedModel, requests: Sequence[Request], tokens: int) -> list[Request]:
    """The longest request and the one with the shortest prompt, for so many tokens.

    Where windows or chunks of the model are shorter than the longest sequence, also its last tokens
    and those around the end of each window, behind other prompts in the place of what comes before.
    """
    longest = max(requests, key=lambda request: request.longest_sequence)
    shortest = min(requests, key=lambda request: len(request.prompt_ids))
    tried = [longest, shortest]
    length = longest.longest_sequence
    most = length + 1 - min(tokens, longest.max_new_tokens)
    for limit in _limits(model, length):
        others = cycle(chain.from_iterable(request.prompt_ids for request in requests))
        before = min(max(1, limit - tokens // 2), most)
        tried.append(replace(longest, prompt_ids=tuple(islice(others, before))))
    return [request.as_probe(k, tokens) for k, request in enumerate(tried)]


def _limits(model: PreTrainedModel, tokens: int) -> list[int]:
    """The windows and chunks of the config that are shorter than a sequence of so many `tokens`,
    and that number, if there are any."""
    config = model.config.get_text_config()
    found = (value for name, value in vars(config).items() if "window" in name or "chunk" in name)
    limits = {value for value in found if isinstance(value, int) and 0 < value < tokens}
    return [*sorted(limits), tokens] if limits else []


def _told(finished: Finished) -> str:
    return repr(asdict(finished))


def _try(
    engine: SlotEngine | AloneEngine,
    requests: Sequence[Request],
    how: str,
    raised: tuple[type[Exception], ...] = (torch.OutOfMemoryError, MemoryError),
) -> tuple[str | None, list[Finished]]:
    """The fault of an engine for these requests, or None; and the sampled completions.

    Args:
        how: the engine writes.
        raised: errors that are no fault of it.
    """
    model = engine.model
    try:
        drawn = sorted(engine.sample(requests, engine.weights), key=lambda finished: finished.k)
    except raised:
        raise
    except Exception as error:
        # A model may raise any error here; it can still be run in another way.
        return _does_not_write(model, how, error), []
    return _difference(model, list(zip(requests, drawn, strict=True)), how), drawn


def _difference(
    model: PreTrainedModel, pairs: Sequence[tuple[Request, Finished]], how: str
) -> str | None:
    """What the last tokens of completions differ in from the model's own forward, if rounding does
    not explain it. A low temperature multiplies rounding, so the comparison divides by it."""
    actual, expected = [], []
    for request, finished in pairs:
        heat = min(request.temperature or 1.0, 1.0)
        logps = torch.tensor(finished.logps[-_TOKENS_TRIED:], dtype=torch.float64)
        least, most = _possible_logps(model, request, finished, _TOKENS_TRIED)
        actual.append(heat * logps)
        expected.append(heat * logps.clamp(least, most))
    difference = logp_difference(torch.cat(actual), torch.cat(expected), model.dtype)
    return difference and f"{how}, {type(model).__name__} differs: {difference}"


def own_logps(
    model: PreTrainedModel, request: Request, finished: Finished, last: int | None = None
) -> Tensor:
    """The logps of what was drawn by the model's own forward among all tokens, at the request's
    temperature; float64 on the host. With `last`, only those of at most so many last tokens."""
    return _logps(*_own_logits(model, request, finished, last), request).cpu()


def _possible_logps(
    model: PreTrainedModel, request: Request, finished: Finished, last: int
) -> tuple[Tensor, Tensor]:
    """Between which numbers the logps are, by the model's own forward, among the tokens that were
    drawn from: where rounding decides whether one more token is left out, either is right."""
    logits, drawn = _own_logits(model, request, finished, last)
    whole = _logps(logits, drawn, request)
    if request.temperature == 0 or not request.is_truncated:
        return whole.cpu(), whole.cpu()
    rounding = min(_ROUNDING / request.temperature, 0.5)
    shares = []
    for more in (1 + rounding, 1 - rounding):
        top_p = min(request.top_p * more, 1.0) if request.top_p < 1 else 1.0
        other = replace(request, top_p=top_p, min_p=min(request.min_p / more, 1.0))
        cuts = cuts_of([other]).to(logits.device).expand(len(logits), -1)
        shares.append(log_share(logits, request.temperature, cuts))
    return (whole - shares[0]).cpu(), (whole - shares[1]).cpu()


def _logps(logits: Tensor, drawn: Tensor, request: Request) -> Tensor:
    logps = (logits / (request.temperature or 1.0)).log_softmax(dim=-1)
    return logps.gather(1, drawn)[:, 0]


@torch.no_grad()
def _own_logits(
    model: PreTrainedModel, request: Request, finished: Finished, last: int | None
) -> tuple[Tensor, Tensor]:
    """Of the model's own forward, the logits [N, V] in float64 from which the last N tokens were
    drawn, of which the largest is 0, and these tokens [N, 1]."""
    count = len(finished.ids[-last:]) if last else len(finished.ids)
    ids = torch.tensor([[*request.prompt_ids, *finished.ids]], device=model.device)
    takes = inspect.signature(model.forward).parameters  # all logits of a long sequence are large
    fewer = {"logits_to_keep": count} if "logits_to_keep" in takes else {}
    read = ids[:, :-1]  # the last one may be beyond the model's positions
    with evaluating(model), attending(model, own_attention(model)):
        logits = model(input_ids=read, use_cache=False, **fewer).logits[0, -count:]
    return logits.double() - logits.double().amax(dim=-1, keepdim=True), ids[0, -count:, None]


@execution_detail
def _does_not_write(model: PreTrainedModel, how: str, error: Exception) -> str:
    return f"{type(model).__name__} does not write {how} ({type(error).__name__}: {error})"
