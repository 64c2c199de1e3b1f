"""Merge the weights of models of one shape: averages, spherical interpolation, task vectors.

The methods are configs, importable without torch, whose formulas work on single arrays. `merge`
reads one tensor of each model at a time, so its memory is that of the largest tensor, times the
number of models and a few more. All arithmetic is numpy's, on one thread, in float32 (float64 for
weights of 64 bits), and a result is rounded to the dtype of the first model once. So equal models
give equal bytes.
"""

import json
import math
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from steps.data.vocabularies import TOKENIZER, read_vocabulary
from steps.export.card import Ancestor
from steps.shared.checks import require
from steps.shared.markdown import as_code

Array = np.ndarray[Any, Any]
_PARALLEL = 1 - 1e-7
"""The cosine from which SLERP interpolates linearly, as the quotient of its sines is lost in
rounding; the two differ by less than that."""
_FREE = ("dtype", "torch_dtype", "transformers_version", "use_cache", "_name_or_path")
"""Fields of a config.json that do not say what the model computes, besides numbers of tokens."""


@dataclass(frozen=True)
class MergeMethod:
    """How several models become one.

    Args:
        weights: a number for each model; empty: the same for all.
    """

    weights: tuple[float, ...] = ()

    needs_base = False
    """Whether the method merges differences from a base, as task vectors are."""

    def __post_init__(self) -> None:
        require(all(map(math.isfinite, self.weights)), "weights must be finite", self.weights)

    def check(self, models: int) -> None:
        """Raise ValueError if so many models cannot be merged in this way."""
        require(models > 1, "models must be two or more", models)
        rule = f"weights must have a number for each of the {models} models"
        require(len(self.weights) in (0, models), rule, self.weights)

    def merged(self, name: str, values: Sequence[Array], base: Array | None) -> Array:
        """The merged values of the tensor `name`, whose values in each model, and in the base, are
        arrays of one shape and dtype, float32 or float64."""
        raise NotImplementedError

    def shares(self, models: int) -> Sequence[float]:
        """The weight of each model; 1 for all without `weights`."""
        return self.weights or (1.0,) * models


@dataclass(frozen=True)
class Linear(MergeMethod):
    """The weighted average Σ wᵢ θᵢ / Σ wᵢ, for equal weights a model soup (Wortsman et al. 2022,
    https://arxiv.org/abs/2203.05482)."""

    def check(self, models: int) -> None:
        super().check(models)
        require(sum(self.shares(models)) != 0, "weights must not add up to 0", self.weights)

    def merged(self, name: str, values: Sequence[Array], base: Array | None) -> Array:
        shares = self.shares(len(values))
        return _weighted(shares, values) / sum(shares)


@dataclass(frozen=True)
class Slerp(MergeMethod):
    """Spherical interpolation between two models (Shoemake 1985,
    https://doi.org/10.1145/325165.325242), for each tensor as one vector:
    sin((1 - t) Ω) / sin Ω · θ₁ + sin(t Ω) / sin Ω · θ₂, where Ω is the angle between θ₁ and θ₂.

    Args:
        t: 0 is the first model, 1 the second.
        weights: must be empty.
    """

    t: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.t <= 1, "t must be in [0, 1]", self.t)
        require(not self.weights, "weights are not for Slerp; set t", self.weights)

    def check(self, models: int) -> None:
        require(models == 2, "Slerp is between two models", models)

    def merged(self, name: str, values: Sequence[Array], base: Array | None) -> Array:
        (a, b), kind = values, values[0].dtype.type
        norms = [math.sqrt(float(np.sum(np.square(v), dtype=np.float64))) for v in values]
        product = float(np.sum(a * b, dtype=np.float64))
        cosine = product / math.prod(norms) if all(norms) else 1.0
        if abs(cosine) > _PARALLEL:
            return a * kind(1 - self.t) + b * kind(self.t)
        angle = math.acos(cosine)
        first, second = (math.sin(x * angle) / math.sin(angle) for x in (1 - self.t, self.t))
        return a * kind(first) + b * kind(second)


@dataclass(frozen=True)
class TaskArithmetic(MergeMethod):
    """The base plus task vectors, θ₀ + scale · Σ wᵢ (θᵢ - θ₀) (Ilharco et al. 2023,
    https://arxiv.org/abs/2212.04089). A negative weight removes a task."""

    scale: float = 1.0

    needs_base = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(math.isfinite(self.scale), "scale must be finite", self.scale)

    def merged(self, name: str, values: Sequence[Array], base: Array | None) -> Array:
        assert base is not None
        tasks = [self.kept(name, which, value - base) for which, value in enumerate(values)]
        return base + base.dtype.type(self.scale) * self.combined(tasks)

    def kept(self, name: str, model: int, task: Array) -> Array:
        """What is kept of a model's task vector."""
        return task

    def combined(self, tasks: Sequence[Array]) -> Array:
        """The sum of task vectors."""
        return _weighted(self.shares(len(tasks)), tasks)


@dataclass(frozen=True)
class Ties(TaskArithmetic):
    """TIES (Yadav et al. 2023, https://arxiv.org/abs/2306.01708): of each task vector the largest
    values, at each place the sign that has the larger sum, and the mean of the values with it.

    Args:
        density: the share of the values of a tensor that are kept. (The paper keeps a share of all
            values of a model.) Values as large as the smallest one that is kept are kept, too.
        scale: λ of the paper.
    """

    density: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.density <= 1, "density must be above 0, and 1 at most", self.density)

    def kept(self, name: str, model: int, task: Array) -> Array:
        size = np.abs(task)
        dropped = size.size - max(1, round(self.density * size.size)) if size.size else 0
        if dropped == 0:
            return task
        return np.where(size >= np.partition(size, dropped, axis=None)[dropped], task, 0)

    def combined(self, tasks: Sequence[Array]) -> Array:
        return _elected(self.shares(len(tasks)), tasks)


@dataclass(frozen=True)
class Dare(TaskArithmetic):
    """DARE (Yu et al. 2024, https://arxiv.org/abs/2311.03099): values of each task vector are
    dropped at random, the others divided by 1 - drop.

    Args:
        drop: the probability that a value is dropped.
        seed: draws depend on it, the name of the tensor and the place of the model.
        elect: combine what is left as TIES does, instead of adding it up.
    """

    drop: float = 0.9
    seed: int = 0
    elect: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.drop < 1, "drop must be in [0, 1)", self.drop)
        require(self.seed >= 0, "seed must not be negative", self.seed)

    def kept(self, name: str, model: int, task: Array) -> Array:
        of_tensor = zlib.crc32(name.encode())
        draws = np.random.Generator(np.random.PCG64([self.seed, of_tensor, model]))
        is_kept = draws.random(task.shape, np.float32) >= self.drop
        return np.where(is_kept, task / task.dtype.type(1 - self.drop), 0)

    def combined(self, tasks: Sequence[Array]) -> Array:
        return (_elected if self.elect else _weighted)(self.shares(len(tasks)), tasks)


def _weighted(shares: Sequence[float], values: Sequence[Array]) -> Array:
    total = np.zeros_like(values[0])
    for share, value in zip(shares, values, strict=True):
        total += value.dtype.type(share) * value
    return total


def _elected(shares: Sequence[float], tasks: Sequence[Array]) -> Array:
    """The weighted mean of the values that have the sign of their weighted sum; 0 without any."""
    sign = np.sign(_weighted(shares, tasks))
    total, count = np.zeros_like(tasks[0]), np.zeros_like(tasks[0])
    for share, task in zip(shares, tasks, strict=True):
        agrees = np.sign(share * task) * sign > 0
        total += np.where(agrees, task.dtype.type(share) * task, 0)
        count += np.where(agrees, task.dtype.type(abs(share)), 0)
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)


def merge(
    models: Mapping[str, Path],
    base: Path | None,
    method: MergeMethod,
    output: Path,
    on_progress: Callable[[int, int, Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Write the merged model as a Hugging Face folder, with files as those of the first model,
    whose config and tokenizer it gets. Returns the number of models and of parameters.

    Args:
        models: folders by the names that errors give them.

    Raises:
        ValueError: the method needs other models; or one has another config, other tensors or
            another tokenizer than the first.
        FloatingPointError: a merged value is not a number.
    """
    method.check(len(models))
    if (base is None) is method.needs_base:
        verb = "needs the base" if method.needs_base else "merges without a base, and was given one"
        raise ValueError(f"{type(method).__name__} {verb}")
    every = [*models.items(), *([] if base is None else [("base", base)])]
    for name, folder in every[1:]:
        _require_alike(every[0], (name, folder))
    counted = 0
    with ExitStack() as opened:
        tensors = [_Tensors(folder, opened) for _, folder in every]
        for (name, _), others in zip(every[1:], tensors[1:], strict=True):
            _require_same_tensors((every[0][0], tensors[0].shapes), (name, others.shapes))
        total = len(tensors[0].shapes)
        for file, names in tensors[0].files.items():

            def values(name: str) -> Array:
                read = [each.values(name) for each in tensors]
                result = method.merged(name, read[: len(models)], read[-1] if base else None)
                if np.isnan(result).any():
                    raise FloatingPointError(f"merged values of {name} are not numbers")
                return result

            for _ in _write(output / file, tensors[0], names, values):
                counted += 1
                on_progress(counted, total, {})
        parameters = sum(math.prod(shape) for shape in tensors[0].shapes.values())
    _copy_rest(every[0][1], output)
    return {"models": len(models), "parameters": parameters}


class _Tensors:
    """The tensors in the files of a model folder, by name."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        from safetensors import safe_open

        self._of: dict[str, Any] = {}
        self.files: dict[str, list[str]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            reader = opened.enter_context(safe_open(file, "pt"))
            self.files[file.name] = sorted(reader.keys())
            self._of |= dict.fromkeys(self.files[file.name], reader)
        slices = {name: reader.get_slice(name) for name, reader in self._of.items()}
        self.shapes = {name: tuple(slices[name].get_shape()) for name in sorted(slices)}
        self.dtypes = {name: slices[name].get_dtype() for name in slices}

    def values(self, name: str) -> Array:
        tensor = self.tensor(name)
        return tensor.numpy() if tensor.itemsize == 8 else tensor.float().numpy()

    def tensor(self, name: str) -> Any:
        return self._of[name].get_tensor(name)


def _write(
    file: Path, like: _Tensors, names: Sequence[str], values: Callable[[str], Array]
) -> Iterator[str]:
    """Write a file of safetensors, one tensor after the other, which the library cannot do; yield
    each name when its tensor is written. What is no float is copied."""
    import torch

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        begin, end = end, end + like.tensor(name).nbytes
        shape = list(like.shapes[name])
        header[name] = {"dtype": like.dtypes[name], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as written:
        written.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            tensor = like.tensor(name)
            if tensor.is_floating_point():
                tensor = torch.from_numpy(values(name)).to(tensor.dtype)
            written.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
            yield name


def _require_alike(first: tuple[str, Path], other: tuple[str, Path]) -> None:
    """Raise ValueError, which names what differs, unless two folders have equal configs and the
    same tokens."""
    a, b = (_said(folder) for _, folder in (first, other))
    if differing := sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key)):
        name = differing[0]
        raise ValueError(
            f"{other[0]} and {first[0]} are unlike models, which cannot be merged: their "
            f"config.json has {name}={b.get(name)!r:.80} and {a.get(name)!r:.80}"
        )
    files = [folder / TOKENIZER for _, folder in (first, other)]
    if not all(file.is_file() for file in files):
        return
    a, b = map(read_vocabulary, files)
    if unlike := sorted(i for i in a.keys() | b.keys() if a.get(i) != b.get(i)):
        raise ValueError(
            f"{other[0]} and {first[0]} have unlike tokenizers and cannot be merged: token "
            f"{unlike[0]} is {b.get(unlike[0])!r} and {a.get(unlike[0])!r}"
        )


def _said(folder: Path) -> dict[Any, Any]:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return {k: v for k, v in config.items() if k not in _FREE and not k.endswith("_token_id")}


def _require_same_tensors(first: tuple[str, Mapping[str, Any]], other: tuple[str, Any]) -> None:
    a, b = first[1], other[1]
    if differing := sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name)):
        name = differing[0]
        shapes = (f"the shape {x[name]}" if name in x else "no place" for x in (b, a))
        raise ValueError(
            f"{other[0]} and {first[0]} are unlike models, which cannot be merged: {name} has "
            f"{' and '.join(shapes)} there"
        )


def _copy_rest(source: Path, output: Path) -> None:
    from steps.models.folders import copy_tokenizer

    copy_tokenizer(source, output)
    for pattern in ("config.json", "generation_config.json", "*.safetensors.index.json"):
        for file in source.glob(pattern):
            shutil.copyfile(file, output / file.name)


def merge_card(method: MergeMethod, parents: Sequence[Ancestor]) -> str:
    """The card of a merged model, in Markdown: the method with its settings, and the parents."""
    settings = [f"{f.name} = {as_code(str(getattr(method, f.name)))}" for f in fields(method)]
    rows = [f"| {one.role} | {as_code(one.step)} | `{one.digest}` |" for one in parents]
    head = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    head += ["tags: [temper, merge]", "---", "", "# Merged model", ""]
    table = ["| parent | made by the step | content |", "|---|---|---|", *rows]
    said = f"Merged by {type(method).__name__}: {'; '.join(settings)}."
    return "\n".join([*head, said, "", *table]) + "\n"
