"""Who draws completions: frozen data, importable without torch.

Where an engine of our own runs is an execution detail: a check at the start shows that it draws the
bits that this process would. Somebody else's engine is identity: what it draws is recorded, and not
promised to be drawn again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.shared.checks import require
from steps.shared.execution_detail import detail_field

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from steps.generation.choosing import EngineChoice
    from steps.generation.engine import Request


@dataclass(frozen=True)
class EngineConfig:
    """Who draws; `name` is what a config calls it."""

    name: ClassVar[str]

    def connect(
        self,
        model: "PreTrainedModel",
        requests: "Sequence[Request]",
        weights: str,
        slots: int,
        tokens_per_forward: int,
    ) -> "EngineChoice":
        """An engine that has the weights of `model`, tried with some of `requests`.

        Args:
            weights: their digest.
            slots: as `SlotEngine`, as is `tokens_per_forward`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class OwnEngine(EngineConfig):
    """The engine of Temper: in this process, or in others that ``temper engine`` starts.

    Args:
        addresses: of engine processes of this machine, such as http://127.0.0.1:8471, which share
            the rows; none: this process draws. The environment's TEMPER_ENGINE_TOKEN has their
            token.
        patience: seconds without an answer after which an engine process counts as hung.
    """

    name: ClassVar[str] = "own"

    addresses: tuple[str, ...] = detail_field(())
    patience: float = detail_field(600.0)

    def __post_init__(self) -> None:
        require(0 < self.patience < math.inf, "patience must be above 0", self.patience)

    def connect(
        self,
        model: "PreTrainedModel",
        requests: "Sequence[Request]",
        weights: str,
        slots: int,
        tokens_per_forward: int,
    ) -> "EngineChoice":
        """As `EngineConfig.connect`.

        Raises:
            ValueError: naming what differs between an engine process and this one.
            EngineError: an engine process cannot be asked.
        """
        from steps.generation.choosing import choose_engine

        here = choose_engine(model, requests, weights, slots, tokens_per_forward)
        if not self.addresses:
            return here
        from steps.generation.remote.own_engine import connected

        return connected(self.addresses, self.patience, here, model, requests, weights)
