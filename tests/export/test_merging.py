"""Merged models: formulas against float64, equal bytes, a card, unlike parents refused."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from step_output import Folder
from test_gguf import write_model, write_tokenizer
from transformers import AutoModelForCausalLM

from steps.export.merging import Array, Dare, Linear, MergeMethod, Slerp, TaskArithmetic, Ties
from steps.kinds import Model
from steps.merge_models import merge_models

DRAWS = np.random.default_rng(7)
BASE, A, B, C = (DRAWS.standard_normal((6, 5)) for _ in range(4))


def soup(*shared: tuple[float, Array]) -> Array:
    return sum(share * value for share, value in shared) / sum(share for share, _ in shared)  # type: ignore[return-value]


def on_the_arc(t: float) -> Array:
    """Of unit vectors by Gram and Schmidt, each with its own length."""
    a, b = A.ravel(), B.ravel()
    u = a / np.linalg.norm(a)
    v = b / np.linalg.norm(b)
    across = v - (v @ u) * u
    angle = math.atan2(np.linalg.norm(across), v @ u)
    mixed = a * math.sin(angle - t * angle) + b * math.sin(t * angle)
    return (mixed / math.sin(angle)).reshape(A.shape)


def elected(tasks: list[Array], keep: int, scale: float) -> Array:
    """TIES value by value."""
    trimmed = []
    for task in tasks:
        least = sorted(abs(task.ravel()))[-keep]
        trimmed.append([x if abs(x) >= least else 0.0 for x in task.ravel()])
    changes = []
    for column in zip(*trimmed, strict=True):
        agreeing = [x for x in column if x * sum(column) > 0]
        changes.append(sum(agreeing) / len(agreeing) if agreeing else 0.0)
    return BASE + scale * np.array(changes).reshape(BASE.shape)


FORMULAS: list[tuple[MergeMethod, list[Array], Callable[[], Array]]] = [
    (Linear(), [A, B, C], lambda: soup((1, A), (1, B), (1, C))),
    (Linear(weights=(3, 1)), [A, B], lambda: soup((3, A), (1, B))),
    (Slerp(t=0.3), [A, B], lambda: on_the_arc(0.3)),
    (Slerp(t=0.25), [A, 2 * A], lambda: 1.25 * A),
    (
        TaskArithmetic(weights=(1, -0.5), scale=0.7),
        [A, B],
        lambda: BASE + 0.7 * (A - BASE) - 0.35 * (B - BASE),
    ),
    (Ties(density=0.3, scale=0.8), [A, B, C],
     lambda: elected([A - BASE, B - BASE, C - BASE], 9, 0.8)),
    (Dare(drop=0), [A, B], lambda: A + B - BASE),
    (Dare(drop=0, elect=True), [A, B, C], lambda: elected([A - BASE, B - BASE, C - BASE], 30, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("method", "models", "expected"), FORMULAS)
def test_a_formula_is_that_of_its_paper(
    method: MergeMethod, models: list[Array], expected: Callable[[], Array]
) -> None:
    np.testing.assert_allclose(method.merged("w", models, BASE), expected(), rtol=1e-12)
    single = [model.astype(np.float32) for model in models]
    merged = method.merged("w", single, BASE.astype(np.float32))
    assert merged.dtype == np.float32
    np.testing.assert_allclose(merged, expected(), rtol=1e-4, atol=2e-6)


def test_dare_keeps_the_task_on_average_and_draws_for_each_tensor_and_model() -> None:
    task = np.ones((400, 500))
    left = Dare(drop=0.9).kept("w", 0, task)
    assert set(np.unique(left.round(9))) == {0.0, 10.0}
    assert abs(left.mean() - 1) < 0.03
    others = [("v", 0), ("w", 1)]
    assert all((Dare(drop=0.9).kept(*other, task) != left).any() for other in others)
    assert (Dare(drop=0.9, seed=1).kept("w", 0, task) != left).any()


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """Three models in bfloat16, in two files each."""
    made = []
    for seed in range(3):
        folder = tmp_path_factory.mktemp(f"parent{seed}")
        torch.manual_seed(seed)
        write_model(folder)
        model = AutoModelForCausalLM.from_pretrained(folder).bfloat16()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.01)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size="20KB")
        write_tokenizer(folder)
        made.append(Model(folder, "train_sft", f"{seed:064x}"))
    assert (made[0].path / "model.safetensors.index.json").is_file()
    return made


@pytest.mark.parametrize("method", [Linear(), TaskArithmetic(), Dare(drop=0.5)])
def test_a_merged_folder_is_a_model_of_equal_bytes_whose_card_names_its_parents(
    parents: list[Model], method: MergeMethod, tmp_path: Path
) -> None:
    base = parents[2] if method.needs_base else None
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
        merge_models.function(Folder(folder), parents[:2], method, base)
    texts = [{f.name: f.read_bytes() for f in folder.iterdir()} for folder in folders]
    assert texts[0] == texts[1]
    merged = AutoModelForCausalLM.from_pretrained(folders[0], dtype="auto").state_dict()
    every = [
        AutoModelForCausalLM.from_pretrained(p.path, dtype=torch.float32).state_dict()
        for p in parents
    ]
    for name, value in merged.items():
        arrays = [one[name].numpy() for one in every]
        exact = method.merged(name, arrays[:2], arrays[2])
        assert value.dtype is torch.bfloat16
        assert torch.equal(value, torch.from_numpy(exact).bfloat16()), name
    card = (folders[0] / "README.md").read_text()
    named = parents if base else parents[:2]
    assert all(parent.digest in card for parent in named)
    assert type(method).__name__ in card


def _other_vocabulary(folder: Path) -> None:
    file = folder / "tokenizer.json"
    described = json.loads(file.read_text())
    vocabulary = described["model"]["vocab"]
    first, second = [t for t in vocabulary if t.isalpha()][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(described))


def _other_shape(folder: Path) -> None:
    file = sorted(folder.glob("*.safetensors"))[0]
    tensors = load_file(file)
    name = min(tensors)
    save_file(tensors | {name: tensors[name][:-1].clone()}, file, {"format": "pt"})


def _other_config(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rms_norm_eps": 0.5}))


@pytest.mark.parametrize(
    ("spoil", "method", "says"),
    [
        (_other_vocabulary, Linear(), r"models\[1\] and models\[0\] have unlike tokenizers"),
        (_other_shape, Linear(), r"models\[1\] and models\[0\] are unlike models.* has the shape"),
        (_other_config, Linear(), r"config.json has rms_norm_eps=0.5"),
        (None, Linear(weights=(1,)), "a number for each of the 2 models"),
        (None, Linear(weights=(1, -1)), "must not add up to 0"),
        (None, Ties(), "Ties needs the base"),
    ],
)
def test_what_cannot_be_merged_is_refused_in_one_sentence(
    parents: list[Model], spoil: Any, method: MergeMethod, says: str, tmp_path: Path
) -> None:
    other = shutil.copytree(parents[1].path, tmp_path / "other")
    if spoil:
        spoil(other)
    (tmp_path / "out").mkdir()
    models = [parents[0], Model(other, "train_dpo", "0" * 64)]
    with pytest.raises(ValueError, match=says):
        merge_models.function(Folder(tmp_path / "out"), models, method)
