"""The settings of vLLM as an engine: frozen data, importable without torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.generation.engine_config import EngineConfig
from steps.models.config import Dtype
from steps.shared.checks import require, require_count, set_choice
from steps.shared.execution_detail import detail_field

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from steps.generation.choosing import EngineChoice
    from steps.generation.engine import Request


@dataclass(frozen=True)
class Vllm(EngineConfig):
    """Servers of vLLM, each started with the model's folder and VLLM_SERVER_DEV_MODE=1.

    Their samples are recorded and can be replayed. Sampling again may give other samples.

    Args:
        version: vLLM's version; servers of another version are refused.
        dtype: the dtype in which the servers compute; servers with another are refused.
        batch_invariant: whether the servers run with VLLM_BATCH_INVARIANT=1.
        addresses: the addresses of the servers, such as http://127.0.0.1:8000; they share the rows.
        folder: a local folder for new weights, which the servers see under the same path.
        concurrent: the most completions that each server is asked for at once.
        patience: the seconds without a reply after which a server counts as hung.
        key_variable: the environment variable with their API key, if they need one.
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
        set_choice(self, "dtype", Dtype)

    def connect(
        self,
        model: "PreTrainedModel",
        requests: "Sequence[Request]",
        weights: str,
        slots: int,
        tokens_per_forward: int,
    ) -> "EngineChoice":
        """As `EngineConfig.connect`; `slots` and `tokens_per_forward` have no effect on servers.

        Raises:
            ValueError: a server is not as this config says.
            SyncError, EngineError: a server does not take the weights, or cannot be reached.
        """
        from steps.generation.remote.vllm_client import connect_to_vllm

        return connect_to_vllm(self, model, requests, weights)
