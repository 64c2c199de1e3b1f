"""What both engines of this process share: a model, and completions that are being written."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from steps.generation.engine import Ended, Finish, Finished, Request
from steps.generation.weights import replace_weights


class OwnModel:
    """An engine's model, whose weights have the digest `weights`."""

    def __init__(self, model: PreTrainedModel, weights: str) -> None:
        self.model = model
        self._weights = weights

    @property
    def weights(self) -> str:
        """The digest of the weights that it has."""
        return self._weights

    def update_weights(self, source: Path | Mapping[str, Tensor], weights: str) -> None:
        """As `Engine.update_weights`."""
        replace_weights(self.model, source, weights)
        self._weights = weights


def require_logp(request: Request, logp: float) -> None:
    """Raise FloatingPointError, which names the row, if the logits of a draw were not numbers."""
    if math.isnan(logp):
        raise FloatingPointError(
            f"row {request.row!r}: the model's logits are not numbers; look at its training, or "
            "sample in float32"
        )


@dataclass(eq=False)
class Written:
    """A completion as far as it is written.

    read: the places of tokens that were read, and not drawn.
    """

    request: Request
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    read: set[int] = field(default_factory=set)

    def add_drawn(self, token: int, logp: float) -> None:
        """Raises FloatingPointError if the logits of the draw were not numbers."""
        require_logp(self.request, logp)
        self.ids.append(token)
        self.logps.append(logp)

    def add_read(self, token: int) -> None:
        """Takes a token of a reply, in the place of a draw."""
        self.read.add(len(self.ids))
        self.ids.append(token)
        self.logps.append(0.0)

    @property
    def is_stopped(self) -> bool:
        """Whether the last token is a stop token that was drawn."""
        return self.ids[-1] in self.request.stop_ids and len(self.ids) - 1 not in self.read

    @property
    def ended(self) -> Ended:
        """It at the end of a turn."""
        return Ended(self.request, tuple(self.ids), self._scored())

    def is_cut_by(self, reply: Sequence[int]) -> bool:
        """Whether there is no room for a draw behind a reply."""
        return len(self.ids) + len(reply) >= self.request.max_new_tokens

    def finished(self, finish: Finish, weights: str) -> Finished:
        """It, as an engine gives it."""
        ids, logps, request = tuple(self.ids), tuple(self.logps), self.request
        scored = self._scored() if self.read else None
        return Finished(request.row, request.k, ids, logps, finish, weights, scored)

    def _scored(self) -> tuple[bool, ...]:
        return tuple(place not in self.read for place in range(len(self.ids)))
