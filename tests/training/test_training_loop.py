"""Training runs as a step starts them: folders and records in, a model folder and metrics out."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import (
    ARCHITECTURES,
    demonstration_records,
    folder_bytes,
    llama,
    log_of,
    model_folder,
    pair_records,
)
from transformers import AutoModelForCausalLM
from waiting import leaving_at

from benchmarks.architectures import tiny
from steps.data.rows.parquet import read_rows
from steps.functional_backend.functional_choice import FunctionalTraining
from steps.models import activation_checkpointing
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig
from steps.models.folders import load_model, save_model
from steps.models.workplace import Left, Workplace
from steps.scoring.config import ReferenceConfig
from steps.scoring.reference import run_reference
from steps.training.config import (
    DpoConfig,
    OptimizerConfig,
    ReferenceFreeConfig,
    Schedule,
    TrainConfig,
)
from steps.training.recipes import run_dpo, run_reference_free, run_sft

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
        Workplace(work / "reference", work / "reference-scratch"),
    )
    summary = run_dpo(
        policy, records, work / "reference", config, Workplace(work / "model", work / "dpo-scratch")
    )
    return summary, log_of(work / "model")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dpo_starts_from_exactly_ln_2_and_zero_rewards(tmp_path: Path, architecture: str) -> None:
    policy = model_folder(tmp_path / "policy", ARCHITECTURES[architecture])
    config = DpoConfig(batch_size=8, tokens_per_forward=48, epochs=2, optimizer=FAST)
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
    run_reference(policy, records, ReferenceConfig(), Workplace(tmp_path / "r", tmp_path / "s"))
    config = DpoConfig(batch_size=4, optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=1))
    summary = run_dpo(
        policy,
        records,
        tmp_path / "r",
        config,
        Workplace(
            tmp_path / "model",
            tmp_path / "s",
            on_progress=lambda done, total, metrics: reports.append((done, total, dict(metrics))),
        ),
    )
    log = log_of(tmp_path / "model")
    assert [report[:2] for report in reports] == [(1, 3), (2, 3), (3, 3)]
    for (*_, seen), metrics in zip(reports, log, strict=True):
        assert metrics.items() <= seen.items()
        assert {"tokens_per_second", "occupancy", "peak_memory_gb"} <= seen.keys() - metrics.keys()
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


@pytest.mark.parametrize("backend", [None, FunctionalTraining()])
def test_values_of_rows_add_up_to_the_log_and_survive_a_stop_and_traces_change_no_byte(
    policy: Path, tmp_path: Path, backend: Any
) -> None:
    records = pair_records(10)
    config = ReferenceFreeConfig(
        batch_size=4, epochs=2, optimizer=FAST, backend=backend, log_rows=True
    )
    place = Workplace(tmp_path / "model", tmp_path / "s", stopping=leaving_at(3))
    with pytest.raises(Left):
        run_reference_free(policy, records, config, place)
    run_reference_free(policy, records, config, replace(place, stopping=lambda: False))
    traced = replace(config, profile_steps=[2])
    run_reference_free(policy, records, traced, Workplace(tmp_path / "whole", tmp_path / "t"))
    assert folder_bytes(tmp_path / "model") == folder_bytes(tmp_path / "whole")
    trace = json.loads((tmp_path / "whole.step-2.trace.json").read_text())
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])
    rows = read_rows(tmp_path / "model" / "rows.parquet")
    for line in log_of(tmp_path / "model"):
        own = [row for row in rows if row["step"] == line["step"]]
        for name in ("loss", "rewards/margins", "logps/chosen"):
            mean = sum(row[name] for row in own) / len(own)
            assert mean == pytest.approx(line[name], abs=1e-12)
    first = [row["row"] for row in rows if row["step"] <= 3]
    assert sorted(first) == sorted(record["row"] for record in records)


def test_the_logged_rate_is_the_one_the_update_uses(policy: Path, tmp_path: Path) -> None:
    # Adam's first update moves every weight by the rate, as long as gradients dwarf epsilon.
    optimizer = OptimizerConfig(
        learning_rate=1e-3, warmup_steps=3, adam_epsilon=1e-30, max_grad_norm=None
    )
    config = TrainConfig(batch_size=4, max_steps=1, optimizer=optimizer)
    run_sft(policy, demonstration_records(8), config, Workplace(tmp_path / "out", tmp_path / "s"))
    before, after = (load_file(f / "model.safetensors") for f in (policy, tmp_path / "out"))
    moved = (after["model.norm.weight"] - before["model.norm.weight"]).abs()
    rate = log_of(tmp_path / "out")[0]["learning_rate"]
    assert rate == 0.25e-3
    torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-2, atol=0)


def test_a_run_without_any_gradient_says_that_the_model_has_learnt_nothing(
    policy: Path, tmp_path: Path
) -> None:
    weights = load_file(policy / "model.safetensors")
    save_file({n: torch.zeros_like(w) for n, w in weights.items()}, policy / "model.safetensors")
    place = Workplace(tmp_path / "out", tmp_path / "s")
    summary = run_sft(policy, demonstration_records(4), TrainConfig(max_steps=2), place)
    (notice,) = summary["notices"]
    assert "gradient was 0 in every step" in notice


def test_a_run_that_makes_chosen_responses_unlikely_says_so_whatever_its_margins(
    policy: Path, tmp_path: Path
) -> None:
    margins = []
    for rate, is_told in ((0.01, False), (0.1, True)):
        optimizer = replace(FAST, learning_rate=rate)
        config = DpoConfig(batch_size=16, epochs=6, optimizer=optimizer)
        summary, log = dpo(policy, pair_records(48), config, tmp_path / f"{rate}")
        margins.append(log[-1]["rewards/margins"])
        assert (log[-1]["logps/chosen"] < log[0]["logps/chosen"]) is is_told
        told = summary.get("notices", [])
        assert ["became far less likely" in notice for notice in told] == [True] * is_told
    assert margins[1] > margins[0] > 0  # the margin of the model that was destroyed is the better


def test_a_sequence_longer_than_a_model_was_trained_for_is_told_by_row(tmp_path: Path) -> None:
    long = pair_records(3)
    longest = max(len(r["prompt_ids"]) + len(r["chosen_ids"]) for r in long)
    for positions, is_told in ((8, True), (longest + 8, False)):
        work = tmp_path / f"{positions}"
        model = model_folder(work / "m", lambda n=positions: llama(positions=n))
        place = Workplace(work / "r", work / "rs")
        scored = run_reference(model, long, ReferenceConfig(), place)
        config = DpoConfig(max_steps=1, optimizer=FAST)
        trained = run_dpo(model, long, work / "r", config, Workplace(work / "o", work / "s"))
        told = [notice for summary in (scored, trained) for notice in summary.get("notices", [])]
        assert [notice for notice in told if f"is made for {positions}" in notice] == told
        assert len(told) == (2 if is_told else 0)


@pytest.fixture(scope="module")
def referred(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A policy, and its reference for eight pairs."""
    work = tmp_path_factory.mktemp("referred")
    policy, place = (
        model_folder(work / "policy", llama),
        Workplace(work / "reference", work / "scratch"),
    )
    run_reference(policy, pair_records(8), ReferenceConfig(), place)
    return policy, place.output


def right_tokens(folder: Path, records: list[dict]) -> float:
    """The share of scored tokens with the largest logit, by the model's own forwards in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    hits = []
    with torch.no_grad():
        for record in records:
            ids, mask = torch.tensor(record["input_ids"]), torch.tensor(record["mask"])
            best = model(ids[None], use_cache=False).logits[0, :-1].argmax(dim=-1)
            hits += (best == ids[1:])[mask[1:]].tolist()
    return sum(hits) / len(hits)


def masked_demonstrations(count: int, seed: int = 0) -> list[dict]:
    """Of different weights, and with gaps in what is scored."""
    made = []
    for number, record in enumerate(demonstration_records(count, seed)):
        prompt, response = record["prompt_ids"], record["response_ids"]
        mask = [False] * len(prompt) + [place % 4 != 1 for place in range(len(response))]
        ids = {"input_ids": prompt + response, "mask": mask}
        made.append({"row": record["row"], "weight": float(number % 3), **ids})
    return made


LORA = LoraConfig(r=8, target_modules=["lm_head"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("llama", {}),
        ("untied", {"lora": LORA}),
        ("gemma2", {}),
        ("modernbert-decoder", {}),
    ],
    ids=["packed", "adapted head", "soft cap", "alone"],
)
def test_sft_logs_the_share_of_scored_tokens_that_are_the_most_likely(
    tmp_path: Path, architecture: str, settings: dict[str, Any]
) -> None:
    builds = {**ARCHITECTURES, "untied": lambda: llama(tied=False)}
    build = builds.get(architecture, lambda: tiny(architecture))
    records, held_out = masked_demonstrations(7), masked_demonstrations(4)
    config = TrainConfig(
        batch_size=7, epochs=8, tokens_per_forward=40, optimizer=FAST, eval_every_steps=8
    )
    folder = model_folder(tmp_path / "init", build)
    for name in ("one", "two"):
        place = Workplace(tmp_path / name, tmp_path / f"{name}-scratch")
        summary = run_sft(folder, records, replace(config, **settings), place, held_out)
        log = log_of(place.output)
        assert log[0]["mean_token_accuracy"] == pytest.approx(right_tokens(folder, records))
        folder = place.output
        found = log[-1]["eval_mean_token_accuracy"]
        assert found == pytest.approx(right_tokens(folder, held_out))
        assert summary["final"]["mean_token_accuracy"] == log[-1]["mean_token_accuracy"]
    assert 0 < log[0]["mean_token_accuracy"] < 1


def test_dropout_acts_in_sft_and_not_in_dpo(tmp_path: Path) -> None:
    policy = model_folder(tmp_path / "policy", lambda: llama(dropout=0.3, layers=1))
    _, log = dpo(policy, pair_records(8), DpoConfig(), tmp_path)
    assert log[0]["loss"] == math.log(2)
    plain = model_folder(tmp_path / "plain")
    losses = []
    for name in (policy, plain):
        work = tmp_path / f"sft-{name.name}"
        records = demonstration_records(8)
        losses.append(
            run_sft(name, records, TrainConfig(), Workplace(work, work / "s"))["first"]["loss"]
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
    with pytest.raises(
        FloatingPointError, match=r"step 2: the loss of \['data:\d+'\] is not finite"
    ):
        run_sft(policy, demonstration_records(8), config, Workplace(tmp_path, tmp_path / "s"))
    assert not (tmp_path / "model.safetensors").exists()


def test_a_bias_that_masks_a_padded_vocabulary_is_trained_and_saved(tmp_path: Path) -> None:
    model = tiny("phi", num_hidden_layers=1).float()
    bias = model.get_parameter("lm_head.bias").detach()
    bias[-20:] = -torch.inf
    model.save_pretrained(tmp_path / "init")
    config = TrainConfig(max_steps=2, optimizer=OptimizerConfig(learning_rate=1e-2))
    place = Workplace(tmp_path / "out", tmp_path / "s")
    run_sft(tmp_path / "init", demonstration_records(8), config, place)
    after = load_file(tmp_path / "out" / "model.safetensors")["lm_head.bias"]
    assert after[-20:].eq(-torch.inf).all()
    assert not after[:-20].equal(bias[:-20])


def test_weights_that_the_last_update_made_infinite_are_not_saved(
    policy: Path, tmp_path: Path
) -> None:
    config = TrainConfig(batch_size=4, max_steps=1, optimizer=OptimizerConfig(learning_rate=1e39))
    with pytest.raises(FloatingPointError, match=r"model\.\S+ has values that are not finite"):
        run_sft(policy, demonstration_records(8), config, Workplace(tmp_path, tmp_path / "s"))
    assert not (tmp_path / "model.safetensors").exists()


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


def test_recomputed_activations_change_no_bit(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_checkpointing, "LEAST_INPUT", 0)
    logs = []
    for how in ActivationCheckpointing:
        config = DpoConfig(batch_size=4, epochs=2, optimizer=FAST, activation_checkpointing=how)
        logs.append(dpo(policy, pair_records(8), config, tmp_path / how)[1])
    assert logs[0] == logs[1] == logs[2]


def test_bfloat16_with_masters_follows_float32(policy: Path, tmp_path: Path) -> None:
    config = DpoConfig(batch_size=4, epochs=8, optimizer=OptimizerConfig(learning_rate=1e-3))
    losses = []
    for name, dtype, masters in (
        ("float32", Dtype.float32, True),
        ("masters", Dtype.bfloat16, True),
        ("rounded", Dtype.bfloat16, False),
    ):
        config = replace(config, dtype=dtype, master_weights=masters)
        _, log = dpo(policy, pair_records(8), config, tmp_path / name)
        assert log[0]["loss"] == math.log(2)
        losses.append(torch.tensor([record["loss"] for record in log]))
    exact, masters, rounded = losses
    assert (masters - exact).abs().mean() < 0.3 * (rounded - exact).abs().mean()
