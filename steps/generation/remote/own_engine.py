"""Engines of our own in other processes, which take the place of the engine of this process if the
results stay the same.

This is checked at the start. Everything that affects the bits (dtype, device, threads, versions)
must be equal in both processes. Both must also sample the same ids and logps, to the bit, for a few
prompts. The other side is ``steps.serving.engine_app``.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from steps.generation.choosing import EngineChoice
from steps.generation.engine import Engine, Finish, Finished, Request, StaleWeightsError
from steps.generation.remote.calling import Caller, require_answer
from steps.generation.remote.syncing import Probe, SyncedEngines, probe_requests, scoring_with
from steps.generation.weights import read_weights

TOKEN = "TEMPER_ENGINE_TOKEN"
"""The environment variable that has the token of engine processes."""
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def bears_on_bits(model: PreTrainedModel) -> dict[str, Any]:
    """Everything except the weights that affects the bits of the samples of a model in this
    process."""
    device = model.device
    return {
        "architecture": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


class OwnEngineClient:
    """Samples with the engine at one address."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def address(self) -> str:
        """The address of the engine."""
        return self._caller.address

    @property
    def weights(self) -> str:
        """The digest of the weights that the engine reports now."""
        return str(self.describe().get("weights"))

    def describe(self) -> dict[str, Any]:
        """The digest of its weights, and everything that affects the bits of its samples."""
        told = self._caller.ask("GET", "/engine/weights")
        if not isinstance(told, dict) or "weights" not in told:
            raise self._caller.fault("does not say which weights it has")
        return told

    def sample(self, requests: Iterable[Request], weights: str) -> Iterator[Finished]:
        """As `Engine.sample`.

        Raises:
            EngineError: the engine is down, hangs, or sends something that was not requested.
        """
        asked = {(request.row, request.k): request for request in requests}
        if not asked:
            return
        content = {"weights": weights, "requests": list(map(asdict, asked.values()))}
        for told in self._caller.lines("/engine/sample", content):
            if isinstance(told, dict) and "error" in told:
                raise self._caller.fault(f"cannot go on ({told['error']})")
            if isinstance(told, dict) and "done" in told:
                break
            try:
                finished = finished_from_json(told, asked)
            except ValueError as error:
                raise self._caller.fault(f"answers what cannot be: {error}") from error
            if finished.weights != weights:
                raise StaleWeightsError(
                    f"the engine at {self.address} has drawn with the weights "
                    f"{finished.weights!r}, and {weights!r} were asked for"
                )
            del asked[finished.row, finished.k]
            yield finished
        if asked:
            raise self._caller.fault(f"has left {len(asked)} completions out")

    def update_weights(self, source: Path | Mapping[str, Tensor], weights: str) -> None:
        """As `Engine.update_weights`."""
        with TemporaryDirectory(prefix="temper-weights-") as folder:
            file = Path(folder, "weights.safetensors")
            tensors = read_weights(source, weights) if isinstance(source, Path) else source
            save_file(once(tensors), file)
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
                content.seek(0)
                headers = {"X-Weights": weights, "X-Digest": digest}
                told = self._caller.ask("POST", "/engine/weights", data=content, headers=headers)
        if told != {"weights": weights}:
            raise self._caller.fault(f"does not say that it has the weights {weights!r}")


def finished_from_json(value: Any, asked: Mapping[tuple[str, int], Request]) -> Finished:
    """A completion that an engine has returned.

    Args:
        asked: the requests by row and number.

    Raises:
        ValueError: it is no valid answer to one of the requests.
    """
    try:
        ids, logps = tuple(value["ids"]), tuple(map(float, value["logps"]))
        row, k, weights = value["row"], value["k"], value["weights"]
        finished = Finished(row, k, ids, logps, Finish(value["finish"]), weights)
        request = asked.get((row, k))
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"it is no completion ({type(error).__name__}: {error})") from error
    if request is None:
        raise ValueError(f"completion {k} of row {row!r} was not asked for")
    require_answer(finished, request)
    return finished


def once(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the host, each once: of the names of one matrix the first."""
    names: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in tensors.items():
        names.setdefault((tensor.data_ptr(), tensor.shape), name)
    return {name: tensors[name].detach().cpu().contiguous() for name in names.values()}


def own_engine(address: str, patience: float = 600.0) -> OwnEngineClient:
    """The client of the engine process at an address of this machine.

    Raises ValueError for another machine: a token must not be sent unencrypted over a network.
    """
    if urlsplit(address).hostname not in _THIS_MACHINE:
        raise ValueError(
            f"the address {address!r} is not on this machine, such as http://127.0.0.1:8471; reach "
            "an engine elsewhere through an SSH tunnel"
        )
    return OwnEngineClient(Caller(address, os.environ.get(TOKEN), patience))


def connected(
    addresses: Sequence[str],
    patience: float,
    here: EngineChoice,
    model: PreTrainedModel,
    requests: Sequence[Request],
    weights: str,
) -> EngineChoice:
    """The engines at some addresses, to be used instead of the engine of this process.

    Args:
        patience: the seconds without a reply after which an engine counts as hung.
        here: the engine of this process, with the weights of `model`.

    Raises:
        ValueError: an engine, which is named, may sample other bits than `here`.
        SyncError, EngineError: an engine does not take the weights, or cannot be reached.
    """
    if here.why_not is not None:
        raise ValueError(f"addresses must be empty for this model: {here.why_not}")
    engines = [own_engine(address, patience) for address in addresses]
    for engine in engines:
        there = engine.describe()
        for name, value in bears_on_bits(model).items():
            if there.get(name) != value:
                raise ValueError(
                    f"the engine at {engine.address} has {name}={there.get(name)} and this process "
                    f"{name}={value}: it would draw other bits; start it with the same"
                )
    probe = Probe(probe_requests(requests), scoring_with(model), model.dtype)
    synced = SyncedEngines(engines, probe)
    synced.update_weights(model.state_dict(), weights or "start")
    # If a completion depends on the others in its batch, both engines sample it alone.
    every = probe.requests
    for part in [every] if here.batch_invariant else [[request] for request in every]:
        expected = _bits(here.engine, part, weights)
        for engine in engines:
            if _bits(engine, part, weights or "start") != expected:
                raise ValueError(
                    f"the engine at {engine.address} draws other bits than this process with the "
                    "same weights: where it runs would be part of the result; leave addresses empty"
                )
    return replace(here, engine=synced)


def _bits(engine: Engine, requests: Iterable[Request], weights: str) -> set[tuple[Any, ...]]:
    """What an engine samples, without the digest of its weights."""
    drawn = engine.sample(requests, weights)
    return {(done.row, done.k, done.ids, done.logps, done.finish) for done in drawn}
