"""Replace the weights of a sampling model, either all of them or none.

An engine that kept one old matrix would sample from a policy that never existed. If two names refer
to one matrix (a head that is tied to the embeddings), a folder has it only once. So the check is
that every matrix gets its values, under any of its names.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from steps.scoring.scored_by import model_digest


@torch.no_grad()
def replace_weights(
    model: PreTrainedModel, source: Path | Mapping[str, Tensor], weights: str
) -> None:
    """Copies the weights of a folder, or of tensors by name, into `model`.

    Raises:
        ValueError: a folder's digest (`model_digest`) is not `weights`; a weight is missing, has an
            unknown name or another shape. Nothing is copied then.
    """
    given = read_weights(source, weights) if isinstance(source, Path) else source
    present = model.state_dict()
    if unknown := sorted(given.keys() - present.keys()):
        raise ValueError(f"the model has no weight {unknown[0]}, of {len(unknown)} such names")
    for name, tensor in given.items():
        if tensor.shape != present[name].shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(present[name].shape)}"
            raise ValueError(f"the shape of {name} is {shapes}; these are weights of another model")
    reached = {present[name].data_ptr() for name in given}
    if missing := [name for name, tensor in present.items() if tensor.data_ptr() not in reached]:
        raise ValueError(f"the new weights lack {missing[0]}, of {len(missing)} such names")
    for name, tensor in given.items():
        present[name].copy_(tensor)


def read_weights(folder: Path, weights: str) -> dict[str, Tensor]:
    """The tensors of a folder, by name.

    Raises:
        ValueError: the folder's digest (`model_digest`) is not `weights`.
    """
    found = model_digest(folder)
    if found != weights:
        raise ValueError(f"{folder} holds the weights {found}, not {weights}; write it again")
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors
