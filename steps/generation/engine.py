"""The interface of a sampler: it takes requests, and yields completions as they finish.

    requests ──► Engine.sample(requests, weights) ──► Finished, in the order in which they end

A completion may be a conversation: `converse` hands each turn to whoever replies (a tool, a game),
and writes on behind the reply. Its tokens are context then, which the policy did not draw.

A request asks for one completion of one prompt. What is drawn follows from the weights, the prompt
and the request's own seed, row and number alone (``draws``), so a caller may split requests over
engines, ranks and attempts, and put the completions together by (row, k).

Every request and every completion names the weights by a digest. An engine with other weights
raises `StaleWeightsError`; otherwise a policy would be trained on rollouts of an older policy as if
they were its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:  # whoever reads rollouts needs no torch
    from torch import Tensor


class Finish(StrEnum):
    """Why a completion ended: at a stop token, at `max_new_tokens`, or because it failed."""

    stop = "stop"
    length = "length"
    error = "error"


@dataclass(frozen=True)
class Request:
    """A request for completion number `k` of a row.

    row: the row's unique id.
    prompt_ids: the prompt's tokens; at least one.
    temperature: the divisor of the logits; 0 takes the likeliest token.
    stop_ids: tokens that end a completion, as its last token.
    seed: whole numbers that, with `row` and `k`, determine the random numbers.
    top_p, top_k, min_p: which tokens are drawn from, as in `SamplingConfig`; from all at
        temperature 0.
    """

    row: str
    k: int
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 1.0
    stop_ids: tuple[int, ...] = ()
    seed: tuple[int, ...] = (0,)
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.prompt_ids or self.max_new_tokens < 1:
            fault = "has no tokens" if not self.prompt_ids else "is to get no completion"
            raise ValueError(f"row {self.row!r}: the prompt {fault}; leave the row out")

    @property
    def longest_sequence(self) -> int:
        """The most tokens that a model reads for it."""
        return len(self.prompt_ids) + self.max_new_tokens - 1

    @property
    def is_truncated(self) -> bool:
        """Whether it leaves out tokens that the model finds possible."""
        return (self.top_p, self.top_k, self.min_p) != (1, 0, 0)

    def as_probe(self, k: int, tokens: int) -> "Request":
        """A request for at most so many tokens from the model's own distribution, whichever they
        are, as completion number `k`."""
        return replace(
            self,
            k=k,
            max_new_tokens=min(self.max_new_tokens, tokens),
            stop_ids=(),
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
        )


@dataclass(frozen=True)
class Finished:
    """A completion.

    ids: its tokens, with the stop token if there is one.
    logps: of each token, its log-probability given all before it, by the distribution that it was
        drawn from: of logits divided by the temperature (at temperature 0, by 1), among the tokens
        that `top_p`, `top_k` and `min_p` leave.
    weights: the digest of the weights that drew it.
    scored: of each token, whether it was drawn; a reply was not, and its logps are 0. None: all.
    """

    row: str
    k: int
    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish: Finish
    weights: str
    scored: tuple[bool, ...] | None = None


class StaleWeightsError(RuntimeError):
    """An engine was asked for completions by weights that it does not have."""


class Engine(Protocol):
    """Samples, in this process or elsewhere."""

    @property
    def weights(self) -> str:
        """The digest of the weights that it has."""
        ...

    def sample(self, requests: Iterable[Request], weights: str) -> Iterator[Finished]:
        """The completions, each as soon as it is there.

        Raises:
            StaleWeightsError: the engine's weights are not `weights`.
        """
        ...

    def update_weights(self, source: "Path | Mapping[str, Tensor]", weights: str) -> None:
        """Replace all weights by those of a Hugging Face folder, or of tensors by name.

        No cached result of the old weights is used again.

        Raises:
            ValueError: a weight is missing or has an unknown name or another shape, or the folder's
                digest is not `weights`. The engine then keeps all its old weights.
        """
        ...


Reply = tuple[int, ...] | Finish
"""To a turn: the tokens that the policy reads before its next one, at least one; or how the
completion has ended: ``stop``, or ``error`` if whoever replies has failed."""


@dataclass(frozen=True)
class Ended:
    """A completion whose last turn has ended with a stop token.

    ids, scored: all of it, as in `Finished`.
    """

    request: Request
    ids: tuple[int, ...]
    scored: tuple[bool, ...]

    @property
    def place(self) -> "Place":
        """Which completion it is."""
        return self.request.row, self.request.k


Place = tuple[str, int]
"""A row's id and the number of a completion."""


class Replies(Protocol):
    """Whoever replies to turns, while the engine writes other completions."""

    def ask(self, ended: Ended) -> None:
        """Takes a turn that is to be replied to."""
        ...

    def given(self, wait: bool) -> Sequence[tuple[Place, Reply]]:
        """The replies that are there, each once; with `wait`, at least one, if any is due."""
        ...


@runtime_checkable
class Converses(Engine, Protocol):
    """An engine that writes completions of several turns."""

    def converse(
        self, requests: Iterable[Request], weights: str, replies: Replies
    ) -> Iterator[Finished]:
        """As `sample`, with a reply to each turn. A completion goes on behind the reply, and token
        number p is drawn with the p-th number of its stream, whatever came before it. One that
        would reach `max_new_tokens` with a reply, which counts, is cut before that reply.
        """
        ...


def share(requests: Sequence[Request], count: int, index: int) -> list[Request]:
    """The requests of one of `count` engines or ranks: those of every n-th row."""
    rows = {row: number for number, row in enumerate(dict.fromkeys(r.row for r in requests))}
    return [r for r in requests if rows[r.row] % count == index]


def require_weights(engine: Engine, weights: str) -> None:
    """Raises StaleWeightsError unless these are the weights that `engine` has."""
    if engine.weights != weights:
        raise StaleWeightsError(
            f"completions by the weights {weights!r} are asked for, and the engine has "
            f"{engine.weights!r}; update its weights first"
        )
