"""The client of a vLLM server: token ids in, token ids and logps out.

    GET  /version, /server_info    what the server is
    POST /inference/v1/generate    one completion: {"token_ids", "sampling_params", "cache_salt"}
    POST /collective_rpc           {"method": "reload_weights", "kwargs": {"weights_path": FOLDER}}
    POST /reset_prefix_cache       forgets keys and values
    POST /update_weight_version    names the weights; GET /weight_info returns the name

A server has all but `generate` and `version` only if it runs with VLLM_SERVER_DEV_MODE=1 (vLLM,
`vllm/entrypoints/serve`). A server that was restarted has another weight version, so completions
with its initial weights are refused. The digest of the weights is the salt of the prefix cache, so
that keys of old weights are not used even if the cache was not reset. Nothing else that the server
reports is relied on: ``syncing`` compares what it samples.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from steps.generation.choosing import EngineChoice
from steps.generation.engine import Finish, Finished, Request, require_weights
from steps.generation.remote.calling import Caller, require_answer
from steps.generation.remote.own_engine import once
from steps.generation.remote.syncing import (
    Probe,
    SyncedEngines,
    probe_requests,
    scoring_with,
    side_by_side,
)
from steps.generation.remote.vllm_config import Vllm
from steps.generation.weights import read_weights

_FINISHES = {"stop": Finish.stop, "length": Finish.length}
_NO_LOGP = -9998.0
"""vLLM writes −9999 for a logp that it has not computed."""


class VllmClient:
    """Samples with the vLLM server at one address.

    Args:
        config: the config of the served model; it is written beside new weights.
        folder: where new weights are written, for the server to read; None: a temporary folder.
        concurrent: the most completions that are requested at once.
    """

    def __init__(self, caller: Caller, config: Any, folder: Path | None, concurrent: int) -> None:
        self._caller = caller
        self._config = config
        self._folder = folder
        self._concurrent = concurrent

    @property
    def address(self) -> str:
        """The address of the server."""
        return self._caller.address

    @property
    def weights(self) -> str:
        """The name that was given to its weights; after a restart the server has another one."""
        told = self._caller.ask("GET", "/weight_info")
        if not isinstance(told, dict) or "weight_version" not in told:
            raise self._caller.fault("does not say which weights it has")
        return str(told["weight_version"])

    def sample(self, requests: Iterable[Request], weights: str) -> Iterator[Finished]:
        """As `Engine.sample`, in the order in which completions end.

        Raises:
            EngineError: the server is down, hangs, or sends something that was not requested.
        """
        require_weights(self, weights)
        missing = deque(requests)
        workers = min(self._concurrent, len(missing))
        yield from side_by_side([self._answers(missing, weights) for _ in range(workers)])
        require_weights(self, weights)

    def update_weights(self, source: Path | Mapping[str, Tensor], weights: str) -> None:
        """As `Engine.update_weights`, if the server does what it reports."""
        tensors = read_weights(source, weights) if isinstance(source, Path) else source
        with TemporaryDirectory(prefix="temper-weights-", dir=self._folder) as folder:
            os.chmod(folder, 0o755)  # the server may be another user's
            save_file(once(tensors), Path(folder, "model.safetensors"), {"format": "pt"})
            self._config.save_pretrained(folder)
            told = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
            self._caller.ask("POST", "/collective_rpc", json=told)
        self._caller.ask("POST", "/reset_prefix_cache")
        self._caller.ask("POST", "/update_weight_version", json={"new_version": weights})
        require_weights(self, weights)

    def _answers(self, missing: deque[Request], weights: str) -> Iterator[Finished]:
        """Take requests one after the other until none is left; several threads share them."""
        while True:
            try:
                request = missing.popleft()
            except IndexError:
                return
            yield self._draw(request, weights)

    def _draw(self, request: Request, weights: str) -> Finished:
        told = self._caller.ask("POST", "/inference/v1/generate", json=to_vllm(request, weights))
        try:
            return from_vllm(told, request, weights)
        except ValueError as error:
            raise self._caller.fault(f"answers what cannot be: {error}") from error


def to_vllm(request: Request, weights: str) -> dict[str, Any]:
    """A request in vLLM's form. It sets every option, because defaults differ between versions and
    models may come with their own."""
    return {
        "token_ids": list(request.prompt_ids),
        "cache_salt": weights,
        "stream": False,
        "sampling_params": {
            "n": 1,
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "min_p": request.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed_of(request),
            "logprobs": 0,
            "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,  # the stop tokens are those that the request names, and no others
            "detokenize": False,
        },
    }


def from_vllm(told: Any, request: Request, weights: str) -> Finished:
    """The completion in a reply of vLLM.

    Raises:
        ValueError: the reply is no completion, or does not match the request.
    """
    try:
        (choice,) = told["choices"]
        ids = tuple(choice["token_ids"])
        content = choice["logprobs"]["content"]
        finish = _FINISHES[choice["finish_reason"]]
        logps = tuple(float(token["logprob"]) for token in content)
        named = [
            f"token_id:{token['token_id']}" if "token_id" in token else str(token.get("token"))
            for token in content
        ]
        drew = {span["version"] for span in choice.get("weight_versions") or ()}
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"row {request.row!r}: it is no completion ({error!r})") from error
    expected = [f"token_id:{token}" for token in ids]
    if any(name.startswith("token_id:") for name in named) and named != expected:
        raise ValueError(f"row {request.row!r}: the logps are those of other tokens")
    if not drew <= {weights}:
        raise ValueError(f"row {request.row!r}: it is drawn by the weights {sorted(drew)}")
    if logps and min(logps) <= _NO_LOGP:
        raise ValueError(f"row {request.row!r}: a token has no logp")
    finished = Finished(request.row, request.k, ids, logps, finish, weights)
    require_answer(finished, request)
    return finished


def seed_of(request: Request) -> int:
    """One number for (seed, row, k), so that no two completions use the same noise."""
    text = json.dumps([list(request.seed), request.row, request.k])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def connect_to_vllm(
    config: Vllm, model: PreTrainedModel, requests: Sequence[Request], weights: str
) -> EngineChoice:
    """As `Vllm.connect`."""
    token = os.environ.get(config.key_variable)
    folder = Path(config.folder) if config.folder else None
    engines = []
    for address in config.addresses:
        caller = Caller(address, token, config.patience)
        _require_as_told(caller, config, requests[0])
        engines.append(VllmClient(caller, model.config, folder, config.concurrent))
    dtype = getattr(torch, config.dtype)
    probe = Probe(probe_requests(requests), scoring_with(model), dtype)
    synced = SyncedEngines(engines, probe)
    synced.update_weights(model.state_dict(), weights or "start")
    facts = {"dtype": str(config.dtype), "version": config.version, "recorded": True}
    return EngineChoice(synced, "vllm", config.batch_invariant, facts=facts)


def _require_as_told(caller: Caller, config: Vllm, request: Request) -> None:
    """Raise ValueError, which names the difference, unless the server is as the config says."""
    try:
        version = caller.ask("GET", "/version")["version"]
        info = caller.ask("GET", "/server_info?config_format=json")
        served = info["vllm_config"]["model_config"]
        found = {
            "version": version,
            "dtype": str(served["dtype"]).removeprefix("torch."),
            "batch_invariant": bool(int(info["vllm_env"].get("VLLM_BATCH_INVARIANT") or 0)),
        }
        logprobs = served.get("logprobs_mode", "raw_logprobs")
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise caller.fault(f"does not say what it is ({error!r})") from error
    for name, value in found.items():
        if value != getattr(config, name):
            raise ValueError(
                f"vLLM at {caller.address} has {name}={value}, and the config says "
                f"{getattr(config, name)}; it is part of the result: make them agree"
            )
    heat, is_drawn = request.temperature, request.temperature != 0
    changed = [f"temperature {heat:g}"] if heat not in (0, 1) else []
    changed += ["top_p, top_k or min_p"] if is_drawn and request.is_truncated else []
    if changed and logprobs != "processed_logprobs":
        raise ValueError(
            f"vLLM at {caller.address} gives logps among all tokens at temperature 1, and "
            f"completions are drawn with {' and '.join(changed)}; start it with --logprobs-mode "
            "processed_logprobs"
        )
