"""Tinker's API: the one module that knows its SDK.

A row is a sequence of T tokens, with the T tokens that they predict. Servers agree in the logps
that they give, but not in what they divide a loss by. Tinker's own adds up tokens and rows. SkyRL's
``tx`` 0.3 divides the loss of a row by the sum of its weights, or by 1e-9 if that is not positive,
and the gradient by the number of rows. So the SDK's `forward_backward_custom`, which sends
gradients as weights of `cross_entropy`, has other gradients there than those of the loss.

Here, gradients of one's own go as advantages A = -d loss / d logp of `importance_sampling`, whose
loss -Σ exp(logp - old) A has the gradient -A at old = logp. Rows are padded to one length, and go
in one call for each step. So all servers find the same gradient up to a factor, which Adam does
not see.

Written for SDK 0.16, to which SkyRL's ``tx`` 0.3 answers. All calls are in 0.25, too: its code was
read, and not run.
"""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tarfile import open as open_tar
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import torch
from safetensors.torch import load_file
from torch import Tensor

from steps.training.config import OptimizerConfig

KEY_VARIABLE = "TINKER_API_KEY"
NAMED = ("cross_entropy", "importance_sampling", "ppo")
"""The losses that all servers know by name."""


@dataclass(frozen=True)
class Sampled:
    """A completion: its token ids, their logps when they were drawn, and whether it ended itself
    (it did not reach `max_tokens`)."""

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    is_whole: bool


@dataclass(frozen=True)
class Row:
    """Token ids, [T], the tokens that they predict, [T], and other inputs of a named loss, each
    [T], such as weights or advantages."""

    ids: Sequence[int]
    targets: Sequence[int]
    others: Mapping[str, Sequence[float]]


class Wire:
    """An adapter on a server, which it trains. All calls wait for their answer.

    Args:
        address: of the server, such as http://127.0.0.1:8000; None: TINKER_BASE_URL of the
            environment, or Tinker itself.
        patience: seconds without an answer after which a call raises TimeoutError.
    """

    def __init__(
        self, base_model: str, rank: int, seed: int, address: str | None, patience: float
    ) -> None:
        if KEY_VARIABLE not in os.environ:
            raise ValueError(f"{KEY_VARIABLE} is not set; a server of your own takes any tml-key")
        os.environ.setdefault("TINKER_TELEMETRY", "0")  # it would send errors with their data
        try:
            import tinker  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("a remote client needs pip install 'temper-ml[tinker]'") from error
        self._sdk: Any = tinker
        self._patience = patience
        settings = {} if address is None else {"base_url": address}
        self._service = self._sdk.ServiceClient(**settings)
        created = self._service.create_lora_training_client_async(
            base_model, rank, seed, train_unembed=False
        )
        self._client = self._service.holder.run_coroutine_threadsafe(created).result(patience)
        self._sampler: Any = None

    def logps(self, rows: Sequence[Row]) -> list[Tensor]:
        """The log-probability of each row's targets, float32 [T], by the present weights."""
        return self._of(self._client.forward(self._data(rows), "cross_entropy"), rows)

    def named(self, rows: Sequence[Row], loss: str, settings: dict[str, float]) -> list[Tensor]:
        """Add the gradient of a loss that the server knows; returns `logps`."""
        return self._of(self._client.forward_backward(self._data(rows), loss, settings), rows)

    def add_gradient(
        self, rows: Sequence[Row], logps: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        """Add the gradient of a loss by the weights, from that by the logps of rows, [T] each."""
        longest = max(len(row.ids) for row in rows)
        padded = []
        for row, old, gradient in zip(rows, logps, gradients, strict=True):
            short = longest - len(row.ids)
            zeros = [0.0] * short
            others = {
                "logprobs": [*old.tolist(), *zeros],
                "advantages": [*(-gradient).tolist(), *zeros],
            }
            ids, targets = [*row.ids, *[row.ids[-1]] * short], [*row.targets, *[0] * short]
            padded.append(Row(ids, targets, others))
        self.named(padded, "importance_sampling", {})

    def step(self, optimizer: OptimizerConfig, rate: float) -> dict[str, float]:
        """Update the adapter by AdamW; returns what the server measured, which may be nothing."""
        told = self._sdk.AdamParams(
            learning_rate=rate,
            beta1=optimizer.adam_beta1,
            beta2=optimizer.adam_beta2,
            eps=optimizer.adam_epsilon,
            weight_decay=optimizer.weight_decay,
        )
        self._sampler = None
        return self._answer(self._client.optim_step(told)).metrics or {}

    def save(self) -> str:
        """Let the server keep adapter and optimiser; returns the path that `load` takes."""
        return self._answer(self._client.save_state(_new_name())).path

    def load(self, path: str) -> None:
        """Restore what `save` saved."""
        self._sampler = None
        try:
            self._answer(self._client.load_state_with_optimizer(path))
        except self._sdk.TinkerError as error:
            raise ValueError(f"the server has no state {path}: {error}") from error

    def adapter(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The adapter's weights by the names of `peft`'s files, and its ``adapter_config.json``."""
        path = self._answer(self._client.save_weights_for_sampler(_new_name())).path
        run, _, checkpoint = path.removeprefix("tinker://").partition("/")
        rest = self._service.create_rest_client()
        url = self._answer(rest.get_checkpoint_archive_url(run, checkpoint)).url
        with urlopen(url, timeout=self._patience) as response:  # signed: it takes no key
            archive = BytesIO(response.read())
        with TemporaryDirectory(prefix="temper-adapter-") as folder:
            with open_tar(fileobj=archive) as files:
                files.extractall(folder, filter="data")
            (config,) = Path(folder).rglob("adapter_config.json")
            weights = load_file(config.with_name("adapter_model.safetensors"))
            return weights, json.loads(config.read_text("utf-8"))

    def sample(
        self, prompts: Sequence[Sequence[int]], count: int, settings: dict[str, Any]
    ) -> list[list[Sampled]]:
        """`count` completions of each prompt by the present weights."""
        if self._sampler is None:
            self._sampler = self._client.save_weights_and_get_sampling_client()
        params = self._sdk.SamplingParams(**settings)
        asked = [
            self._sampler.sample(self._sdk.ModelInput.from_ints(list(ids)), count, params)
            for ids in prompts
        ]
        return [[_sampled(one) for one in self._answer(call).sequences] for call in asked]

    def close(self) -> None:
        """End the session."""
        self._service.holder.close()

    def _data(self, rows: Sequence[Row]) -> list[Any]:
        return [
            self._sdk.Datum(
                model_input=self._sdk.ModelInput.from_ints(list(row.ids)),
                loss_fn_inputs={
                    "target_tokens": torch.tensor(row.targets),
                    **{name: torch.tensor(x).float() for name, x in row.others.items()},
                },
            )
            for row in rows
        ]

    def _of(self, call: Any, rows: Sequence[Row]) -> list[Tensor]:
        outputs = self._answer(call).loss_fn_outputs
        found = [torch.tensor(output["logprobs"].data) for output in outputs]
        told, asked = [len(x) for x in found], [len(row.ids) for row in rows]
        if told != asked:
            raise ValueError(f"the server gave {told} logps for rows of {asked} tokens")
        return found

    def _answer(self, call: Any) -> Any:
        return call.result(self._patience)


def _sampled(sequence: Any) -> Sampled:
    logps = tuple(sequence.logprobs or ())
    return Sampled(tuple(sequence.tokens), logps, sequence.stop_reason == "stop")


def _new_name() -> str:
    return f"temper-{secrets.token_hex(8)}"  # servers hang at a name that they know
