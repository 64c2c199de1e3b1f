"""Servers of Tinker's API: SkyRL's, in an environment of its own, and a stand-in in this process.

``TEMPER_TINKER_PYTHON`` names the interpreter of an environment with `skyrl-tx[tinker]==0.3.0`,
JAX and torch; its SDK and this environment's are 0.16.
"""

import copy
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import URLError
from urllib.request import urlopen

import torch
from torch import Tensor

from steps.models.adapters import add_adapter
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model
from steps.tinker_backend.tinker_wire import Row, Sampled
from steps.training.config import OptimizerConfig

PYTHON = os.environ.get("TEMPER_TINKER_PYTHON", "")


@contextmanager
def server(base: Path, work: Path) -> Iterator[str]:
    """The address of a server with the model of a folder."""
    work.mkdir(parents=True)
    uv = work / "bin" / "uv"  # by which the server starts its engine, as in `uv run … -m …`
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\nwhile [ "$1" != -m ]; do shift; done\nexec {PYTHON} "$@"\n')
    uv.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"max_lora_adapters": 12, "max_lora_rank": 8}
    command = [PYTHON, "-m", "tx.tinker.api", "--base-model", str(base), "--backend", "jax"]
    command += ["--backend-config", json.dumps(settings), "--host", "127.0.0.1"]
    command += ["--checkpoints-base", str(work / "kept"), "--port", str(port)]
    command += ["--database-url", f"sqlite:///{work / 'server.db'}"]
    told = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    environment = {**os.environ, **told, "PATH": f"{uv.parent}:{os.environ['PATH']}"}
    with (work / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(process, f"{address}/api/v1/healthz", work / "log")
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait(60)


def _wait(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            urlopen(address, timeout=5).close()
            return
        except (URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


class StandIn:
    """What `Wire` does, by a model of a folder in this process. Like a server, it multiplies
    gradients by a factor of its own."""

    _kept: ClassVar[dict[str, Any]] = {}

    def __init__(self, base: str, rank: int, seed: int, address: Any, patience: float) -> None:
        self._model = load_model(Path(base), Dtype.float32)
        lora = LoraConfig(r=rank)
        self._adapted = add_adapter(self._model, lora, seed)
        self._parameters = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        self._optimizer = torch.optim.AdamW([*self._parameters.values()], weight_decay=0)

    def logps(self, rows: Sequence[Row]) -> list[Tensor]:
        with torch.no_grad():
            return [self._logps(row) for row in rows]

    def named(self, rows: Sequence[Row], loss: str, settings: dict[str, float]) -> list[Tensor]:
        assert loss == "cross_entropy", loss
        every = [self._logps(row) for row in rows]
        weights = [torch.tensor(row.others["weights"]) for row in rows]
        sums = [-(logps * w).sum() for logps, w in zip(every, weights, strict=True)]
        (torch.stack(sums).sum() / 7).backward()
        return [logps.detach() for logps in every]

    def add_gradient(
        self, rows: Sequence[Row], logps: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        for row, old, gradient in zip(rows, logps, gradients, strict=True):
            ratios = (self._logps(row) - old).exp()
            ((ratios * gradient).sum() / 7).backward()

    def step(self, optimizer: OptimizerConfig, rate: float) -> dict[str, float]:
        group = self._optimizer.param_groups[0]
        group |= {"lr": rate, "eps": optimizer.adam_epsilon}
        group |= {"betas": (optimizer.adam_beta1, optimizer.adam_beta2)}
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {}

    def save(self) -> str:
        path = f"tinker://stand-in/weights/{len(self._kept)}"
        weights = {name: p.detach().clone() for name, p in self._parameters.items()}
        state = copy.deepcopy(self._optimizer.state_dict())
        self._kept[path] = weights, state
        return path

    def load(self, path: str) -> None:
        weights, state = self._kept[path]
        with torch.no_grad():
            for name, weight in weights.items():
                self._parameters[name].copy_(weight)
        self._optimizer.load_state_dict(state)

    def adapter(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        named = {name.replace(".default", ""): p for name, p in self._parameters.items()}
        weights = {f"base_model.model.{n}": p.detach().clone() for n, p in named.items()}
        described: Any = self._adapted.peft_config["default"]
        return weights, {"r": described.r, "lora_alpha": described.lora_alpha}

    def sample(self, prompts: Any, count: int, settings: Any) -> list[list[Sampled]]:
        return [[Sampled((1,), (0.0,), True)] * count for _ in prompts]

    def close(self) -> None: ...

    def _logps(self, row: Row) -> Tensor:
        logits = self._model(torch.tensor([row.ids])).logits[0]
        return logits.log_softmax(-1).gather(1, torch.tensor(row.targets)[:, None])[:, 0]
