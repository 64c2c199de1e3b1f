"""The weights of a Hugging Face folder in the decoder's form, with those of the layers stacked.

    model.layers.0.mlp.up_proj.weight [F, H]  ┐
    model.layers.1.mlp.up_proj.weight [F, H]  ┴→  tree["layers"]["mlp.up_proj.weight"] [2, F, H]

Arrays are NumPy arrays, with bfloat16 from `ml_dtypes`. The trainer's interface uses torch tensors
on the host, by the names of the folder.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from jax import Array
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from steps.jax_backend.architecture import Architecture
from steps.jax_backend.decoder import SCORE
from steps.jax_backend.devices import on_host
from steps.models.value_head import require_no_more

Tree = dict[str, Any]
"""Arrays by name; those of the layers in a tree of their own, "layers"."""
NOTHING: Tree = {"layers": {}}

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_OUTSIDE = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", SCORE}
_PER_LAYER = re.compile(
    r"self_attn\.(q|k|v|o|qkv)_proj\.(weight|bias)|self_attn\.(q|k)_norm\.weight"
    r"|mlp\.(gate|up|down|gate_up)_proj\.(weight|bias)"
    r"|(input|post_attention|pre_feedforward|post_feedforward)_layernorm\.weight"
)

_ADAPTER = re.compile(r"(self_attn|mlp)\.\w+_proj\.lora_[AB]\.default\.weight")


def expected_shapes(folder: Path, kind: Any = AutoModelForCausalLM) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters that transformers gives the model of a folder, by name.

    Args:
        kind: the auto class; with that of classifiers, the model has one label.

    Raises ValueError, which names the parameter, if the decoder would not use one.
    """
    config = AutoConfig.from_pretrained(folder)
    if kind is AutoModelForSequenceClassification:
        config.num_labels = 1
    with torch.device("meta"):
        model = kind.from_config(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name in shapes:
        layer = _LAYER.fullmatch(name)
        if name not in _OUTSIDE and not (layer and _PER_LAYER.fullmatch(layer[2])):
            raise ValueError(
                f"backend=jax does not know the parameter {name}; use torch (backend=null)"
            )
    return shapes


def read_weights(folder: Path, dtype: np.dtype, kind: Any = AutoModelForCausalLM) -> Tree:
    """The weights in a model folder's safetensors, as `dtype`; a new head of scores is 0.

    Raises ValueError, which names the parameter, if one is missing or has another shape.
    """
    shapes = expected_shapes(folder, kind)
    files = {}
    for path in _files(folder):
        try:
            file: Any = safe_open(path, framework="numpy")
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}); import the model again") from error
        files |= dict.fromkeys(file.keys(), file)
    if SCORE in shapes:
        require_no_more(files, folder)
    new = {SCORE} & (shapes.keys() - files.keys())
    for name, shape in shapes.items():
        if name in new:
            continue
        found = tuple(files[name].get_slice(name).get_shape()) if name in files else None
        if found != shape:
            fault = "is missing" if found is None else f"has the shape {found}, not {shape}"
            raise ValueError(f"{name} {fault} in {folder}; import the model again")
    _require_tied(shapes, files, folder)

    def read(name: str) -> np.ndarray:
        return np.zeros(shapes[name]) if name in new else files[name].get_tensor(name)

    return stacked(shapes, lambda name: read(name).astype(dtype))


def _files(folder: Path) -> list[Path]:
    """The files from which transformers reads the weights; there may be others beside them."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    names = {whole.name}
    if not whole.is_file() and index.is_file():
        try:
            names = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{index} is damaged; import the model again") from error
    return [folder / name for name in sorted(names) if (folder / name).is_file()]


def _require_tied(shapes: Mapping[str, Any], files: Mapping[str, Any], folder: Path) -> None:
    """Refuses a head of its own in a model whose config ties it to the embeddings: transformers
    would leave the two apart."""
    head, embeddings = "lm_head.weight", "model.embed_tokens.weight"
    if head in shapes or head not in files or SCORE in shapes:
        return
    if not np.array_equal(*(files[name].get_tensor(name) for name in (head, embeddings))):
        raise ValueError(
            f"{head} in {folder} is not {embeddings}, though its config.json has "
            "tie_word_embeddings=true; set that to false, as this is what transformers computes"
        )


def stacked(names: Mapping[str, Any], read: Callable[[str], np.ndarray]) -> Tree:
    """The tree of arrays that `read` gives for the names of a folder, one stack after the other."""
    layers: dict[str, dict[int, str]] = {}
    tree: Tree = {}
    for name in names:
        if layer := _LAYER.fullmatch(name):
            layers.setdefault(layer[2], {})[int(layer[1])] = name
        else:
            tree[name] = read(name)
    tree["layers"] = {
        suffix: np.stack([read(numbered[number]) for number in sorted(numbered)])
        for suffix, numbered in layers.items()
    }
    return tree


def adapters_of(parameters: Mapping[str, Tensor], layers: int) -> Tree:
    """Adapters, and a head of scores beside them, by their names as a tree; raises ValueError
    naming an adapter that the decoder lacks."""
    suffixes: dict[str, list[str]] = {}
    for name in parameters:
        if name == SCORE:
            continue
        layer = _LAYER.fullmatch(name)
        if not (layer and _ADAPTER.fullmatch(layer[2])):
            raise ValueError(
                f"backend=jax cannot adapt {name.partition('.lora_')[0]}, only the matrices of "
                "attention and perceptron; choose other target_modules, or use torch (backend=null)"
            )
        suffixes.setdefault(layer[2], []).append(name)
    for names in suffixes.values():
        if len(names) < layers:
            raise ValueError(
                f"backend=jax adapts a matrix in all {layers} layers or in none, not in "
                f"{len(names)} like {names[0].partition('.lora_')[0]}; choose other "
                "target_modules, or use torch (backend=null)"
            )
    return stacked(parameters, lambda name: to_numpy(parameters[name]))


def beside(some: Tree, others: Tree) -> Tree:
    """One tree of both."""
    return {**some, **others, "layers": {**some["layers"], **others["layers"]}}


def by_name(tree: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a tree with the names of the folder, copied from the devices one stack at a
    time; of several processes all must read to the end."""
    for name, value in tree.items():
        if name != "layers":
            yield name, _whole(value)
            continue
        for suffix, stack in value.items():
            for number, layer in enumerate(_whole(stack)):
                yield f"model.layers.{number}.{suffix}", layer


def _whole(array: Any) -> np.ndarray:
    return on_host(array) if isinstance(array, Array) else array


def to_torch(array: np.ndarray) -> Tensor:
    """A copy as a tensor on the host."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The values of a tensor on the host."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def shape_tree(architecture: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> Tree:
    """The shapes of the arrays that `stacked` would make."""
    tree: Tree = {"layers": {}}
    for name, shape in shapes.items():
        if layer := _LAYER.fullmatch(name):
            tree["layers"][layer[2]] = (architecture.layers, *shape)
        else:
            tree[name] = shape
    return tree
