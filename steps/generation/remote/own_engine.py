"""The client of our own engine in another process (``engine_server``)."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from steps.generation.engine import Finished, Request, StaleWeightsError
from steps.generation.remote.as_json import finished_from_json
from steps.generation.remote.calling import Caller
from steps.generation.weights import read_weights


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
        told = self._caller.ask("GET", "/engine")
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
        for told in self._caller.lines("/sample", content):
            if isinstance(told, dict) and "error" in told:
                raise self._caller.fault(f"cannot go on ({told['error']})")
            if isinstance(told, dict) and "done" in told:
                break
            finished = self._read(told, asked)
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
                told = self._caller.ask("POST", "/weights", data=content, headers=headers)
        if told != {"weights": weights}:
            raise self._caller.fault(f"does not say that it has the weights {weights!r}")

    def _read(self, told: Any, asked: Mapping[tuple[str, int], Request]) -> Finished:
        try:
            return finished_from_json(told, asked)
        except ValueError as error:
            raise self._caller.fault(f"answers what cannot be: {error}") from error


def once(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the host, each once: of the names of one matrix the first."""
    names: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in tensors.items():
        names.setdefault((tensor.data_ptr(), tensor.shape), name)
    return {name: tensors[name].detach().cpu().contiguous() for name in names.values()}
