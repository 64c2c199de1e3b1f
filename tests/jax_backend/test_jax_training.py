"""Training runs with `backend=jax` as a step starts them, beside those of torch."""

import json
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from rank_processes import run_ranks
from safetensors.torch import load_file
from tiny_models import (
    demonstration_records,
    folder_bytes,
    gemma2,
    llama,
    log_of,
    model_folder,
    pair_records,
)
from waiting import kill_this_process, leaving_at

from steps.data.images.images_of_rows import ImageOfRow
from steps.jax_backend.backend_choice import JaxTraining
from steps.jax_backend.config import JaxScoring
from steps.losses.dpo import Dpo
from steps.models.config import Dtype
from steps.models.workplace import Workplace
from steps.scoring.config import Attention, ReferenceConfig
from steps.scoring.reference import read_reference, run_reference
from steps.training.config import DpoConfig, OptimizerConfig, Schedule, TrainConfig
from steps.training.recipes import run_dpo, run_sft

OPTIMIZER = OptimizerConfig(
    learning_rate=1e-3, schedule=Schedule.cosine, warmup_steps=3, weight_decay=0.1
)
CONFIG = DpoConfig(
    batch_size=8,
    tokens_per_forward=1024,  # all batches have one shape, which is compiled once
    epochs=10,
    max_steps=20,
    optimizer=OPTIMIZER,
    loss=Dpo(beta=0.5, nll_weight=0.1),
)
JAX = JaxTraining(devices=1)
RECORDS = pair_records(24)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "policy", lambda: llama(tied=False))


def train(policy: Path, config: DpoConfig, work: Path, **place: Any) -> tuple[dict, list[dict]]:
    """Reference and training, as two steps would do them; the summary and the logged steps."""
    scratch = Workplace(work / "reference", work / "reference-scratch")
    run_reference(policy, RECORDS, config.reference(), scratch)
    where = Workplace(work / "model", work / "scratch", **place)
    summary = run_dpo(policy, RECORDS, work / "reference", config, where)
    return summary, log_of(work / "model")


def twenty_steps_are_torch_s(policy: Path, tmp_path: Path, backend: Any = JAX) -> dict:
    _, expected = train(policy, CONFIG, tmp_path / "torch")
    summary, actual = train(policy, replace(CONFIG, backend=backend), tmp_path / "jax")
    assert actual[0]["loss"] == pytest.approx(math.log(2) + 0.1 * actual[0]["nll_loss"], abs=1e-6)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
        assert ours["learning_rate"] == theirs["learning_rate"]
        assert ours["num_tokens"] == theirs["num_tokens"]
    assert expected[-1]["loss"] < expected[0]["loss"] - 0.1
    weights = [load_file(tmp_path / name / "model/model.safetensors") for name in ("torch", "jax")]
    before = load_file(policy / "model.safetensors")
    assert weights[0].keys() == weights[1].keys()
    for name, theirs in weights[0].items():
        moved = (theirs - before[name]).norm()
        assert (weights[1][name] - theirs).norm() <= 1e-3 * moved, name
    return summary


def test_twenty_steps_go_as_they_go_with_torch(policy: Path, tmp_path: Path) -> None:
    twenty_steps_are_torch_s(policy, tmp_path)


def goes_on_with_the_other(policy: Path, tmp_path: Path, backend: Any = JAX) -> None:
    config = replace(CONFIG, checkpoint_every_steps=1, max_steps=8)
    _, expected = train(policy, config, tmp_path / "whole")
    for first, second in ((None, backend), (backend, None)):
        work = tmp_path / f"{second and second.name}"
        with pytest.raises(Exception, match="left after step 4"):
            train(policy, replace(config, backend=first), work, stopping=leaving_at(4))
        _, log = train(policy, replace(config, backend=second), work)
        assert len(log) == 8
        for ours, theirs in zip(log, expected, strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)


@pytest.mark.slow
def test_a_run_begun_with_one_backend_goes_on_with_the_other(policy: Path, tmp_path: Path) -> None:
    """Weights, moments and step count of a checkpoint, in both directions."""
    goes_on_with_the_other(policy, tmp_path)


def train_all(train: Callable[..., Any], folder: Path, runs: list[tuple[str, int | None]]) -> None:
    """Runs in folders of these names, each killed after a step, or not."""
    for name, killed_at in runs:
        train(folder / name, on_progress=_killing(folder / name, killed_at))


def _killing(work: Path, killed_at: int | None) -> Callable[..., None]:
    def on_progress(done: int, *_: object) -> None:
        if done == killed_at:
            kill_this_process(once_there=work / "scratch/checkpoints/step-000004")

    return on_progress


OF_KILLED: Any = {"max_steps": 6, "checkpoint_every_steps": 2}


def killed_runs_end_alike(tmp_path: Path, train: Callable[..., Any]) -> None:
    ended = [
        run_ranks(train_all, train, tmp_path, runs, count=1)
        for runs in ([("killed", 5)], [("killed", None), ("whole", None)])
    ]
    assert ended == [[-signal.SIGKILL], [0]]
    assert load_file(tmp_path / "killed/model/model.safetensors")
    assert folder_bytes(tmp_path / "killed/model") == folder_bytes(tmp_path / "whole/model")


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_same_bytes(policy: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, backend=JAX, **OF_KILLED)
    killed_runs_end_alike(tmp_path, partial(train, policy, config))


def test_supervised_training_in_bfloat16_updates_masters(tmp_path: Path) -> None:
    """At this rate most updates are less than bfloat16 can tell."""
    policy = model_folder(tmp_path / "policy", gemma2)
    records = demonstration_records(12)
    losses = {}
    for name, backend in (("torch", None), ("jax", JAX)):
        config = TrainConfig(
            batch_size=12,
            epochs=8,
            dtype=Dtype.bfloat16,
            tokens_per_forward=512,  # one shape to compile
            optimizer=OptimizerConfig(learning_rate=1e-4, schedule=Schedule.constant),
            backend=backend,
        )
        place = Workplace(tmp_path / name, tmp_path / f"{name}-scratch")
        summary = run_sft(policy, records, config, place)
        losses[name] = (summary["first"]["loss"], summary["final"]["loss"])
    assert losses["jax"] == pytest.approx(losses["torch"], abs=3e-2)
    trained = load_file(tmp_path / "jax/model.safetensors")
    assert {weight.dtype for weight in trained.values()} == {torch.bfloat16}


def test_held_out_examples_are_evaluated_during_training(policy: Path, tmp_path: Path) -> None:
    records = demonstration_records(4)
    found = {}
    for name, backend in (("torch", None), ("jax", JAX)):
        config = TrainConfig(
            batch_size=4,
            epochs=4,
            tokens_per_forward=512,
            eval_every_steps=1,
            optimizer=replace(OPTIMIZER, learning_rate=3e-3),
            backend=backend,
        )
        place = Workplace(tmp_path / name, tmp_path / f"{name}-scratch")
        run_sft(policy, records, config, place, held_out=records)
        names = ("eval_loss", "eval_mean_token_accuracy", "mean_token_accuracy")
        found[name] = [[step[each] for each in names] for step in log_of(tmp_path / name)]
    torch.testing.assert_close(found["jax"], found["torch"], rtol=0, atol=1e-5)
    assert 0 < found["jax"][-1][-1] < 1


@pytest.mark.parametrize(
    "dtype", [pytest.param(Dtype.float32, marks=pytest.mark.attack), Dtype.float64]
)
def test_a_reference_of_either_backend_serves_the_other(
    policy: Path, tmp_path: Path, dtype: Dtype
) -> None:
    folders = {}
    for name, backend in (("torch", None), ("jax", JaxScoring(devices=1))):
        folders[name] = tmp_path / name
        config = ReferenceConfig(
            tokens_per_forward=128, groups_per_shard=8, backend=backend, dtype=dtype
        )
        run_reference(policy, RECORDS, config, Workplace(folders[name], tmp_path / f"{name}-s"))
    torch_s, jax_s = (read_reference(folder) for folder in folders.values())
    assert (torch_s.scored_by.backend, jax_s.scored_by.backend) == ("torch", "jax")
    jax_s.scored_by.require_comparable(torch_s.scored_by, folders["torch"])
    bfloat16 = [replace(r.scored_by, dtype=Dtype.bfloat16) for r in (torch_s, jax_s)]
    with pytest.raises(ValueError, match=r"computed with backend=torch .* runs with backend=jax"):
        bfloat16[1].require_comparable(bfloat16[0], folders["torch"])
    config = replace(CONFIG, backend=JAX, max_steps=1, dtype=dtype)
    place = Workplace(tmp_path / "model", tmp_path / "scratch")
    run_dpo(policy, RECORDS, folders["torch"], config, place)  # its start is checked


def test_what_the_backend_lacks_is_refused(policy: Path, tmp_path: Path) -> None:
    place = Workplace(tmp_path / "out", tmp_path / "scratch")
    records = demonstration_records(3)
    padded = TrainConfig(attention=Attention.padded, backend=JAX)
    with pytest.raises(ValueError, match="reads packs only; set attention=auto"):
        run_sft(policy, records, padded, place)
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | {"resid_pdrop": 0.1}))
    with pytest.raises(ValueError, match=r"drops nothing but .* asks for resid_pdrop=0\.1"):
        run_sft(policy, records, TrainConfig(backend=JAX), place)


def test_a_row_with_images_is_refused(policy: Path, tmp_path: Path) -> None:
    seen = (ImageOfRow(tmp_path, "0"),)
    records = [*demonstration_records(3), demonstration_records(4)[3] | {"images": seen}]
    place = Workplace(tmp_path / "out", tmp_path / "scratch")
    with pytest.raises(ValueError, match=r"row .* has images, which backend=jax does not read"):
        run_sft(policy, records, TrainConfig(backend=replace(JAX, check=False)), place)


def test_a_decoder_that_differs_from_the_model_is_found_before_training(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steps.jax_backend import jax_scorer

    right = jax_scorer.read_architecture
    monkeypatch.setattr(
        jax_scorer, "read_architecture", lambda folder: replace(right(folder), norm_offset=0.5)
    )
    with pytest.raises(ValueError, match="does not compute what transformers' LlamaForCausalLM"):
        run_sft(
            policy,
            demonstration_records(3),
            TrainConfig(backend=JAX),
            Workplace(tmp_path / "out", tmp_path / "scratch"),
        )
