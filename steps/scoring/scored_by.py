"""How log-probabilities were computed, to decide whether two sets of them are comparable."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

import torch
import transformers
from transformers import PreTrainedModel

from steps.models.config import ADAPTED, Dtype, Quantization
from steps.models.quantized import quantization_of
from steps.scoring.config import Attention

_DECISIVE = ("dtype", "attention", "device", "quantization")
_TORCH = "torch"


@dataclass(frozen=True)
class ScoredBy:
    """The settings that can change the value of a log-probability of given tokens.

    Between dtypes, kinds of attention and kinds of devices, the logps of long responses can differ
    by more than a reward. So two sets must agree in these settings. In bfloat16 they must also
    agree in the backend, as each backend rounds in other places. The other settings change at most
    rounding.

    backend: the engine that ran the model, "torch" or another name.
    quantization: how weights were rounded; None, which metadata leave out, if they were not.
    """

    dtype: Dtype
    attention: Attention
    device: str
    tokens_per_forward: int
    torch: str
    transformers: str
    backend: str = _TORCH
    quantization: Quantization | None = None

    @classmethod
    def of(
        cls, model: PreTrainedModel, dtype: Dtype, attention: Attention, tokens_per_forward: int
    ) -> Self:
        """How `model` scores in this process, with the given dtype and attention."""
        return cls(
            dtype,
            attention,
            model.device.type,
            tokens_per_forward,
            torch.__version__,
            transformers.__version__,
            quantization=quantization_of(model),
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes]) -> Self:
        """The inverse of `metadata`; raises ValueError if an entry is missing or invalid."""
        try:
            metadata = {
                b"backend": json.dumps(_TORCH).encode(),
                b"quantization": b"null",
                **metadata,
            }
            values = {f.name: json.loads(metadata[f.name.encode()]) for f in fields(cls)}
            values |= {"dtype": Dtype(values["dtype"])}
            values |= {"attention": Attention(values["attention"])}
            if values["quantization"] is not None:
                values |= {"quantization": Quantization(values["quantization"])}
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"the logps do not say how they were computed ({error!r}); compute them again"
            ) from error
        return cls(**values)

    def metadata(self) -> dict[str, str]:
        """The settings as entries of a file's metadata."""
        values = asdict(self).items()
        return {name: json.dumps(value) for name, value in values if value is not None}

    def differences(self, other: Self) -> list[str]:
        """The names of settings that differ, the decisive ones first."""
        names = sorted((f.name for f in fields(self)), key=lambda name: name not in _DECISIVE)
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    def is_packed_alike(self, other: Self) -> bool:
        """Whether both are packed, with the same libraries on the same kind of device. Then either
        both are correct or neither is."""
        packed = self.attention is Attention.packed
        return packed and set(self.differences(other)) <= {"tokens_per_forward"}

    def require_comparable(self, reference: Self, folder: Path) -> None:
        """Raise ValueError, which names a setting, if logps of the two must not be compared."""
        decisive = {*_DECISIVE, *(("backend",) if self.dtype is Dtype.bfloat16 else ())}
        differing = [name for name in self.differences(reference) if name in decisive]
        if differing:
            name = differing[0]
            advice = f"compute it again with {name}={getattr(self, name) or 'null'}"
            if name == "attention":  # not every model can be packed, but every model can be padded
                advice = "set attention=padded for both, and compute it again"
            raise ValueError(
                f"the reference in {folder} was computed with {name}={getattr(reference, name)} "
                f"but the policy runs with {name}={getattr(self, name)}; {advice}"
            )


def model_digest(folder: Path) -> str:
    """A digest of a model folder's weights and config, as 16 hexadecimal digits; of one that was
    assembled, of its adapters and of what they rest on."""
    digest = hashlib.sha256()
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config.pop("transformers_version", None)
    digest.update(json.dumps(config, sort_keys=True).encode())
    files = sorted(folder.glob("*.safetensors"))
    if (folder / ADAPTED).is_file():
        files = [folder / ADAPTED, *sorted(folder.glob("adapter/*.safetensors"))]
    for file in files:
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()[:16]
