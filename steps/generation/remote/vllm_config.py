"""vLLM as who draws: frozen data, importable without torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.generation.engine_config import EngineConfig
from steps.models.config import Dtype
from steps.shared.checks import require, require_count
from steps.shared.execution_detail import detail_field

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from steps.generation.choosing import EngineChoice
    from steps.generation.engine import Request


@dataclass(frozen=True)
class Vllm(EngineConfig):
    """Servers of vLLM, each started with the model's folder and VLLM_SERVER_DEV_MODE=1.

    What they draw is recorded: it can be replayed, and is not promised to be drawn again.

    Args:
        version: of vLLM; servers of another are refused.
        dtype: what the servers compute in; likewise.
        batch_invariant: the servers run with VLLM_BATCH_INVARIANT=1.
        addresses: of the servers, such as http://127.0.0.1:8000, which share the rows.
        folder: a local folder that the servers see under the same path, for new weights.
        concurrent: how many completions each is asked for at once.
        patience: seconds without an answer after which a server counts as hung.
        key_variable: the environment variable that has their API key, if they want one.
    """

    name: ClassVar[str] = "vllm"

    version: str = ""
    dtype: Dtype = Dtype.bfloat16
    batch_invariant: bool = False
    addresses: tuple[str, ...] = detail_field(())
    folder: str = detail_field("")
    concurrent: int = detail_field(64)
    patience: float = detail_field(600.0)
    key_variable: str = detail_field("VLLM_API_KEY")

    def __post_init__(self) -> None:
        require(bool(self.version), "version must name vLLM's, such as 0.32.0", self.version)
        require(bool(self.addresses), "addresses must name at least one server", self.addresses)
        require(0 < self.patience < math.inf, "patience must be above 0", self.patience)
        require_count(self, "concurrent")

    def connect(
        self,
        model: "PreTrainedModel",
        requests: "Sequence[Request]",
        weights: str,
        slots: int,
        tokens_per_forward: int,
    ) -> "EngineChoice":
        """As `EngineConfig.connect`; `slots` and `tokens_per_forward` are the servers' business.

        Raises:
            ValueError: a server is not what this config says.
            SyncError, EngineError: a server does not take over the weights, or cannot be asked.
        """
        from steps.generation.remote.vllm_client import connect_to_vllm

        return connect_to_vllm(self, model, requests, weights)
