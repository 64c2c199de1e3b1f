"""Training runs as a step starts them: folders and records in, a model folder and metrics out."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import (
    ARCHITECTURES,
    VOCABULARY,
    demonstration_records,
    folder_bytes,
    gpt2,
    llama,
    model_folder,
    pair_records,
)
from transformers import AutoModelForCausalLM, PreTrainedModel

from steps.training.checkpoints import Checkpoints
from steps.training.config import (
    DpoConfig,
    Dtype,
    OptimizerConfig,
    ReferenceConfig,
    Schedule,
    TrainConfig,
)
from steps.training.dpo import dpo_objective, run_dpo
from steps.training.examples import read_demonstrations, read_pairs
from steps.training.logps import score_pairs
from steps.training.loop import Objective, train
from steps.training.models import load_model, save_model
from steps.training.reference import run_reference
from steps.training.sft import run_sft, sft_objective

FAST = OptimizerConfig(learning_rate=1e-2, schedule=Schedule.constant)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "policy")


def dpo(policy: Path, records: list[dict], config: DpoConfig, work: Path) -> tuple[dict, list]:
    """Reference and training, as two steps would do them; the summary and the logged steps."""
    run_reference(
        policy,
        records,
        ReferenceConfig(dtype=config.dtype),
        output=work / "reference",
        scratch=work / "reference-scratch",
    )
    summary = run_dpo(
        policy,
        records,
        work / "reference",
        config,
        output=work / "model",
        scratch=work / "dpo-scratch",
    )
    return summary, read_log(work / "model")


def read_log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def flat_gradient(model: PreTrainedModel) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dpo_starts_from_exactly_ln_2_and_zero_rewards(tmp_path: Path, architecture: str) -> None:
    policy = model_folder(tmp_path / "policy", ARCHITECTURES[architecture])
    config = DpoConfig(batch_size=8, micro_batch_size=1, epochs=2, optimizer=FAST)
    summary, log = dpo(policy, pair_records(21), config, tmp_path)
    assert log[0]["loss"] == math.log(2)
    assert [log[0][f"rewards/{name}"] for name in ("chosen", "rejected", "margins")] == [0, 0, 0]
    assert log[1]["loss"] != math.log(2)
    assert log[1]["rewards/margins"] != 0
    assert summary["final"]["loss"] < 0.6
    assert summary["final"]["rewards/accuracies"] > 0.8


def test_the_summary_and_the_log_say_what_happened(policy: Path, tmp_path: Path) -> None:
    records = pair_records(10)
    reports = []
    run_reference(policy, records, ReferenceConfig(), output=tmp_path / "r", scratch=tmp_path / "s")
    config = DpoConfig(batch_size=4, optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=1))
    summary = run_dpo(
        policy,
        records,
        tmp_path / "r",
        config,
        output=tmp_path / "model",
        scratch=tmp_path / "s",
        on_progress=lambda done, total, metrics: reports.append((done, total, dict(metrics))),
    )
    log = read_log(tmp_path / "model")
    assert reports == [(i + 1, 3, metrics) for i, metrics in enumerate(log)]
    assert [m["step"] for m in log] == [1, 2, 3]
    assert [m["epoch"] for m in log] == pytest.approx([1 / 3, 2 / 3, 1])
    assert [m["learning_rate"] for m in log] == [0.5e-3, 1e-3, 0.5e-3]
    tokens = sum(
        2 * len(r["prompt_ids"]) + len(r["chosen_ids"]) + len(r["rejected_ids"]) for r in records
    )
    assert summary["tokens"] == log[-1]["num_tokens"] == tokens
    assert summary["first"]["loss"] == log[0]["loss"]
    assert summary["final"]["rewards/margins"] == log[-1]["rewards/margins"]
    assert json.loads(json.dumps(summary)) == summary


def test_the_logged_rate_is_the_one_the_update_uses(policy: Path, tmp_path: Path) -> None:
    # Adam's first update moves every weight by the rate, as long as gradients dwarf epsilon.
    optimizer = OptimizerConfig(
        learning_rate=1e-3, warmup_steps=3, adam_epsilon=1e-30, max_grad_norm=None
    )
    config = TrainConfig(batch_size=4, max_steps=1, optimizer=optimizer)
    run_sft(
        policy, demonstration_records(8), config, output=tmp_path / "out", scratch=tmp_path / "s"
    )
    before, after = (load_file(f / "model.safetensors") for f in (policy, tmp_path / "out"))
    moved = (after["model.norm.weight"] - before["model.norm.weight"]).abs()
    rate = read_log(tmp_path / "out")[0]["learning_rate"]
    assert rate == 0.25e-3
    torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-2, atol=0)


def test_max_steps_is_obeyed(policy: Path, tmp_path: Path) -> None:
    config = TrainConfig(batch_size=2, epochs=3, max_steps=4)
    run_sft(policy, demonstration_records(6), config, output=tmp_path, scratch=tmp_path / "s")
    assert len(read_log(tmp_path)) == 4


@pytest.mark.parametrize("loss", ["dpo", "sft"])
def test_micro_batches_change_neither_loss_nor_gradient(
    policy: Path, tmp_path: Path, loss: str
) -> None:
    gradients, losses = [], []
    for size in (1, 2, 4, 8):
        model = load_model(policy, Dtype.float64).eval()
        if loss == "dpo":
            pairs = read_pairs(pair_records(8), VOCABULARY)
            chosen, rejected = score_pairs(model, pairs)
            objective = dpo_objective(model, pairs, chosen - 1, rejected, DpoConfig(beta=1.0))
        else:
            demonstrations = read_demonstrations(demonstration_records(8), VOCABULARY)
            objective = sft_objective(model, demonstrations)
        config = TrainConfig(
            batch_size=8,
            micro_batch_size=size,
            max_steps=1,
            optimizer=OptimizerConfig(max_grad_norm=None),
        )
        log = train(model, objective, config, Checkpoints(tmp_path / "none"))
        losses.append(log[0]["loss"])
        gradients.append(flat_gradient(model))
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-6)
    assert gradients[0].norm() > 1e-2
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=1e-6)


def test_sft_loss_is_the_mean_over_the_batch_s_response_tokens(
    policy: Path, tmp_path: Path
) -> None:
    model = load_model(policy)
    demonstrations = read_demonstrations(demonstration_records(6), VOCABULARY)
    nlls = []
    for example in demonstrations:
        sequence = example.sequence
        labels = torch.tensor([[-100] * len(sequence.prompt_ids) + list(sequence.response_ids)])
        ids = torch.tensor([sequence.prompt_ids + sequence.response_ids])
        nlls.append(model(input_ids=ids, labels=labels).loss.item() * len(sequence.response_ids))
    tokens = sum(len(example.sequence.response_ids) for example in demonstrations)
    config = TrainConfig(batch_size=6, micro_batch_size=2)
    log = train(model, sft_objective(model, demonstrations), config, Checkpoints(tmp_path))
    assert log[0]["loss"] == pytest.approx(sum(nlls) / tokens, rel=1e-6)


def test_every_example_is_trained_on_once_an_epoch(policy: Path, tmp_path: Path) -> None:
    model = load_model(policy)
    demonstrations = read_demonstrations(demonstration_records(10), VOCABULARY)
    objective = sft_objective(model, demonstrations)
    seen: list[int] = []

    def sums(indices):
        seen.extend(indices)
        return objective.sums(indices)

    watched = Objective(objective.rows, objective.tokens, objective.weights, sums)
    train(
        model,
        watched,
        TrainConfig(batch_size=4, micro_batch_size=3, epochs=2),
        Checkpoints(tmp_path),
    )
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_sft_learns(policy: Path, tmp_path: Path) -> None:
    config = TrainConfig(batch_size=8, micro_batch_size=8, epochs=30, optimizer=FAST)
    summary = run_sft(
        policy, demonstration_records(8), config, output=tmp_path, scratch=tmp_path / "s"
    )
    assert summary["final"]["loss"] < 0.5 * summary["first"]["loss"]


def test_dropout_acts_in_sft_and_not_in_dpo(tmp_path: Path) -> None:
    policy = model_folder(tmp_path / "policy", lambda: llama(dropout=0.3))
    _, log = dpo(policy, pair_records(8), DpoConfig(), tmp_path)
    assert log[0]["loss"] == math.log(2)
    plain = model_folder(tmp_path / "plain", llama)
    losses = []
    for name in (policy, plain):
        work = tmp_path / f"sft-{name.name}"
        records = demonstration_records(8)
        losses.append(
            run_sft(name, records, TrainConfig(), output=work, scratch=work / "s")["first"]["loss"]
        )
    assert losses[0] != losses[1]  # same weights, same examples


def test_a_loss_that_is_not_finite_names_the_step_and_the_rows(
    policy: Path, tmp_path: Path
) -> None:
    config = TrainConfig(
        batch_size=1,
        max_steps=5,
        optimizer=OptimizerConfig(learning_rate=1e38, schedule=Schedule.constant),
    )
    with pytest.raises(FloatingPointError, match=r"step 2: the loss of \['data:\d+'\] is nan"):
        run_sft(policy, demonstration_records(8), config, output=tmp_path, scratch=tmp_path / "s")
    assert not (tmp_path / "model.safetensors").exists()


def test_a_saved_model_reloads_as_it_was(tmp_path: Path) -> None:
    for build in (llama, lambda: llama(tied=False), gpt2):
        model = load_model(model_folder(tmp_path / "in", build))
        save_model(model, tmp_path / "out", tokenizer_from=tmp_path / "in")
        reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert type(reloaded) is type(model)
        for (name, saved), (_, loaded) in zip(
            model.named_parameters(), reloaded.named_parameters(), strict=True
        ):
            assert torch.equal(saved, loaded), name


def test_a_saved_model_has_the_same_bytes_wherever_it_came_from(tmp_path: Path) -> None:
    for place in ("here", "there/and/further"):
        folder = model_folder(tmp_path / place / "in")
        (folder / "tokenizer.json").write_text('{"stands": "for a tokenizer"}')
        (folder / "chat_template.jinja").write_text("{{ messages }}")
        (folder / "notes.txt").write_text(place)
        model = load_model(folder)
        save_model(model, tmp_path / place / "out", tokenizer_from=folder)
    here, there = (folder_bytes(tmp_path / p / "out") for p in ("here", "there/and/further"))
    assert here == there
    assert sorted(here) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert str(tmp_path).encode() not in b"".join(here.values())


def test_tied_embeddings_are_stored_once(policy: Path, tmp_path: Path) -> None:
    save_model(load_model(policy), tmp_path / "out", tokenizer_from=policy)
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")


def test_equal_runs_write_equal_bytes(policy: Path, tmp_path: Path) -> None:
    config = DpoConfig(batch_size=4, optimizer=FAST)
    for name in ("first", "second"):
        dpo(policy, pair_records(9), config, tmp_path / name)
    assert folder_bytes(tmp_path / "first/model") == folder_bytes(tmp_path / "second/model")
