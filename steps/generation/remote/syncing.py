"""Sends new weights to every engine, and checks that the engines sample with them.

    sync_weights(engines, tensors, digest, probe)
        every engine ── loads them ── samples the probe's prompts ──► tokens, logps
        the trainer  ── scores the same tokens with the weights that it sent
        further apart than rounding explains: SyncError

An engine that reports success may have kept one old matrix, or keys and values of the old weights.
So its report does not count. Each update samples the same probe prompts, because an engine with a
stale cache would answer these from its cache.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.generation.choosing import own_logps
from steps.generation.engine import Engine, Finished, Request, StaleWeightsError, share

_PROMPTS = 8
_TOKENS = 16
_TOLERANCES = {  # of one token, and of the mean of all; nats
    torch.float64: (1e-4, 3e-5),
    torch.float32: (1e-4, 3e-5),
    torch.float16: (0.1, 0.01),
    torch.bfloat16: (1.0, 0.05),
}

Score = Callable[[Sequence[tuple[Request, Finished]]], Sequence[Tensor]]
"""The trainer's log-probabilities of each completion's tokens, float64, on the host."""


class SyncError(RuntimeError):
    """An engine samples with other weights than it was sent."""


@dataclass(frozen=True)
class Probe:
    """Requests that are sampled after every update, and the function that scores the samples.

    dtype: the dtype in which the engines compute; it decides how large rounding errors may be.
    """

    requests: Sequence[Request]
    score: Score
    dtype: torch.dtype


def probe_requests(requests: Sequence[Request]) -> list[Request]:
    """Up to eight of the requested prompts, with the longest and the shortest: sixteen tokens of
    each, at temperature 1 and from all tokens, whatever the requests say."""
    by_length = sorted(
        {r.prompt_ids: r for r in requests}.values(), key=lambda r: r.longest_sequence
    )
    count = min(_PROMPTS, len(by_length))
    places = [number * (len(by_length) - 1) // max(1, count - 1) for number in range(count)]
    return [by_length[place].as_probe(number, _TOKENS) for number, place in enumerate(places)]


def sync_weights(
    engines: Sequence[Engine],
    source: Path | Mapping[str, Tensor],
    weights: str,
    probe: Probe,
) -> None:
    """Send weights to every engine, and compare what each then samples with the trainer's scoring.

    It needs no trainer: with `scoring_with`, any process that has the model can call it.

    Args:
        source: a Hugging Face folder whose digest is `weights`, or tensors by name.

    Raises:
        SyncError: an engine samples with other weights.
        ValueError: an engine refuses the weights, and keeps those that it had.
    """
    for engine in engines:
        engine.update_weights(source, weights)
        require_synced(engine, weights, probe)


def require_synced(engine: Engine, weights: str, probe: Probe) -> None:
    """Raise SyncError unless an engine's samples of the probe have the logps of the trainer's
    scoring."""
    asked = {(request.row, request.k): request for request in probe.requests}
    drawn = list(engine.sample(probe.requests, weights))
    pairs = [(asked[finished.row, finished.k], finished) for finished in drawn]
    actual = torch.tensor([logp for finished in drawn for logp in finished.logps]).double()
    expected = torch.cat([logps.double().cpu() for logps in probe.score(pairs)])
    errors = (actual - expected).abs()
    largest, mean = _TOLERANCES[probe.dtype]
    if not (errors.max() <= largest and errors.mean() <= mean):  # also for what is not a number
        raise SyncError(
            f"{_called(engine)} has accepted the weights {weights} and draws with others: logps of "
            f"a probe are off by up to {errors.max():.2g} and by {errors.mean():.2g} on average, "
            f"where rounding explains {largest:g} and {mean:g}; restart it on these weights"
        )


def scoring_with(model: PreTrainedModel) -> Score:
    """A `Score` that uses the forward of a model of this process with the weights."""
    return lambda pairs: [own_logps(model, request, finished) for request, finished in pairs]


class SyncedEngines:
    """Engines of other processes as one `Engine`; each takes every n-th row. New weights count only
    after a probe has shown them."""

    def __init__(self, engines: Sequence[Engine], probe: Probe) -> None:
        if not engines:
            raise ValueError("there must be at least one engine")
        self._engines, self._probe, self._shown = tuple(engines), probe, ""

    def scored_by(self, score: Score) -> "SyncedEngines":
        """The same engines, compared with another scoring function from the next update on."""
        return SyncedEngines(self._engines, replace(self._probe, score=score))

    @property
    def weights(self) -> str:
        """The digest of the weights that all engines have, after a probe has shown that they use
        them."""
        shown = self._shown
        return shown if shown and all(own.weights == shown for own in self._engines) else ""

    def update_weights(self, source: Path | Mapping[str, Tensor], weights: str) -> None:
        """As `sync_weights`."""
        self._shown = ""
        sync_weights(self._engines, source, weights, self._probe)
        self._shown = weights

    def sample(self, requests: Iterable[Request], weights: str) -> Iterator[Finished]:
        """As `Engine.sample`. If one engine fails, the others finish their requests, so that a run
        that goes on has little to sample again."""
        if self._shown != weights:
            raise StaleWeightsError(
                f"completions by the weights {weights!r} are asked for, and the engines have been "
                f"shown to have {self._shown!r}; update their weights first"
            )
        every, count = list(requests), len(self._engines)
        parts = ((engine, share(every, count, n)) for n, engine in enumerate(self._engines))
        return side_by_side([engine.sample(part, weights) for engine, part in parts if part])


def _called(engine: Engine) -> str:
    address = getattr(engine, "address", None)
    return f"the engine at {address}" if address else f"the engine {type(engine).__name__}"


def side_by_side(sources: Sequence[Iterator[Finished]]) -> Iterator[Finished]:
    """All items of several sources, each source in a thread, as they arrive.

    The first error of a source is raised when the other sources have ended. Closing this iterator
    does not wait: each source ends after its next item.
    """
    answers: queue.SimpleQueue[Finished | BaseException | None] = queue.SimpleQueue()
    leaving = threading.Event()

    def draw(source: Iterator[Finished]) -> None:
        try:
            for finished in source:
                answers.put(finished)
                if leaving.is_set():
                    return
            answers.put(None)
        except BaseException as error:
            answers.put(error)

    for source in sources:
        threading.Thread(target=draw, args=(source,), daemon=True).start()
    failure, running = None, len(sources)
    try:
        while running:
            answer = answers.get()
            if isinstance(answer, Finished):
                yield answer
            else:
                running -= 1
                failure = failure or answer
    finally:
        leaving.set()
    if failure is not None:
        raise failure
