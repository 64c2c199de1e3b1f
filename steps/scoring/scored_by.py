"""How log-probabilities were computed, so that two sets of them can be told to be comparable."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

import torch
import transformers
from transformers import PreTrainedModel

from steps.models.config import Dtype
from steps.scoring.config import Attention

_DECISIVE = ("dtype", "attention", "device")
_TORCH = "torch"


@dataclass(frozen=True)
class ScoredBy:
    """What bears on the value of a log-probability, its tokens aside.

    Across dtypes, ways of attending and kinds of device, long responses differ by more than a
    reward, so in these two sets must agree; so do backends in bfloat16, where each rounds in places
    of its own. The others change a rounding, or nothing.

    backend: what ran the model, "torch" or another's name.
    """

    dtype: Dtype
    attention: Attention
    device: str
    tokens_per_forward: int
    torch: str
    transformers: str
    backend: str = _TORCH

    @classmethod
    def of(
        cls, model: PreTrainedModel, dtype: Dtype, attention: Attention, tokens_per_forward: int
    ) -> Self:
        """How `model`, loaded as `dtype`, scores here, its attention chosen as `attention`."""
        return cls(
            dtype,
            attention,
            model.device.type,
            tokens_per_forward,
            torch.__version__,
            transformers.__version__,
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes]) -> Self:
        """What `metadata` made; raises ValueError for the metadata of something else."""
        try:
            metadata = {b"backend": json.dumps(_TORCH).encode(), **metadata}
            values = {f.name: json.loads(metadata[f.name.encode()]) for f in fields(cls)}
            values |= {"dtype": Dtype(values["dtype"])}
            values |= {"attention": Attention(values["attention"])}
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"the logps do not say how they were computed ({error!r}); compute them again"
            ) from error
        return cls(**values)

    def metadata(self) -> dict[str, str]:
        """The same, as a file can carry it."""
        return {name: json.dumps(value) for name, value in asdict(self).items()}

    def differences(self, other: Self) -> list[str]:
        """The settings in which two ways of scoring differ, the decisive ones first."""
        names = sorted((f.name for f in fields(self)), key=lambda name: name not in _DECISIVE)
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    def is_packed_alike(self, other: Self) -> bool:
        """Whether both are packed, by the same libraries on the same kind of device: where one is
        right, so is the other."""
        packed = self.attention is Attention.packed
        return packed and set(self.differences(other)) <= {"tokens_per_forward"}

    def require_comparable(self, reference: Self, folder: Path) -> None:
        """Raises ValueError naming a setting in which logps of the two must not be compared."""
        decisive = {*_DECISIVE, *(("backend",) if self.dtype is Dtype.bfloat16 else ())}
        differing = [name for name in self.differences(reference) if name in decisive]
        if differing:
            name = differing[0]
            advice = f"compute it again with {name}={getattr(self, name)}"
            if name == "attention":  # no model is sure to be packed, and each can be padded
                advice = "set attention=padded for both, and compute it again"
            raise ValueError(
                f"the reference in {folder} was computed with {name}={getattr(reference, name)} "
                f"but the policy runs with {name}={getattr(self, name)}; {advice}"
            )


def model_digest(folder: Path) -> str:
    """16 hexadecimal digits that follow from a model folder's weights and architecture."""
    digest = hashlib.sha256()
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config.pop("transformers_version", None)
    digest.update(json.dumps(config, sort_keys=True).encode())
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()[:16]
