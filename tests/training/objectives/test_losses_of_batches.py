"""Losses that look at tokens or at the whole batch, in training: however a batch is cut into
forwards, in a whole run, on held-out pairs and in an evaluation."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from oracle import assert_same_gradients
from tiny_models import folder_bytes, log_of, model_folder, pair_records
from token_groups import pairs, reference_logps, responses
from torch import Tensor
from transformers import PreTrainedModel
from waiting import leaving_at

from steps.evaluation.preferences import preference_metrics
from steps.losses.base import PairLogps, PreferenceLoss
from steps.losses.combined import CombinedReference
from steps.losses.dpo import Dpo
from steps.losses.token_level.ld_dpo import LdDpo
from steps.losses.whole_batch.aot import Aot
from steps.losses.whole_batch.aot_unpaired import AotUnpaired
from steps.losses.whole_batch.beta_dpo import BetaDpo
from steps.losses.with_reference.wpo import Wpo
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.models.workplace import Left, Workplace
from steps.scoring.architectures.pack_layouts import read_alone
from steps.scoring.attention import use_packed_attention
from steps.scoring.config import Attention
from steps.scoring.examples import TokenGroup, read_pairs
from steps.scoring.logps import TokenLogps, aligned_logps
from steps.scoring.packing import lengths_of, make_pack
from steps.scoring.reference import run_reference
from steps.scoring.scorer import Scorer
from steps.training.config import DpoConfig, OptimizerConfig, Schedule
from steps.training.objectives import preference_objective
from steps.training.recipes import run_dpo
from steps.training.trainer import Trainer

LOSSES = [
    LdDpo(0.3, alpha=0.25),
    Aot(0.3, label_smoothing=0.1),
    AotUnpaired(0.3),
    BetaDpo(0.3),
    CombinedReference({"dpo": Dpo(0.3), "ld": LdDpo(0.5), "aot": Aot(0.3)}, {"ld": 0.5}),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


def reference_tokens(groups: list[TokenGroup], sums: Tensor) -> TokenLogps:
    """Tokens of different logps whose sums are `sums`."""
    lengths = lengths_of(groups)
    parts = []
    for total, length in zip(sums.flatten(), lengths.flatten().tolist(), strict=True):
        shares = torch.arange(1, length + 1, dtype=torch.float64)
        parts.append(total * shares / shares.sum())
    return TokenLogps(torch.cat(parts), lengths)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_batch_has_the_oracle_s_loss_and_gradient_in_any_number_of_forwards(
    folder: Path, loss: PreferenceLoss
) -> None:
    with oracle.in_float64():
        groups = pairs()
        reference = reference_logps(len(groups))
        tokens = reference_tokens(groups, reference)
        slow = oracle.load(folder)
        each = [oracle.token_logps(slow, p, r) for g in groups for p, r, _ in responses(g)]
        sums = torch.stack([values.sum() for values in each]).view(-1, 2)
        theirs, lengths = tokens.sums(), tokens.lengths
        columns = (*sums.unbind(1), *lengths.unbind(1), *theirs.unbind(1))
        logps = PairLogps(*columns)  # pyright: ignore[reportArgumentType]
        logps = replace(logps, tokens=torch.cat(each), reference_tokens=tokens.tokens)
        textbook = loss.per_pair(logps.as_batch()).losses.mean()
        expected, value = oracle.gradients(slow, textbook), textbook.item()
    for budget in (1, 60, 10**6):
        with oracle.in_float64():
            model = load_model(folder, Dtype.float64)
            use_packed_attention(model)
            trainer = Trainer(Scorer(model, budget), OptimizerConfig())
            objective = preference_objective(groups, loss, tokens.sums(), tokens)
            batch = trainer.prepare(groups)
            before = trainer.logps(batch).result().of(groups) if loss.needs_batch else None
            of_batch = objective.batch_loss(range(len(groups)), before)
            result = trainer.forward_backward(batch, of_batch).result()
            assert result.losses.sum().item() == pytest.approx(value, rel=1e-12)
        assert_same_gradients(model, expected)


@pytest.mark.parametrize("attention", [Attention.packed, Attention.padded])
def test_wpo_s_weights_are_aligned_by_the_policy_s_own_probabilities(
    folder: Path, tmp_path: Path, attention: Attention
) -> None:
    """In training, on held-out pairs, and of models that read each response alone."""
    records, loss = pair_records(6), Wpo(0.3, align=True)
    config = DpoConfig(
        loss=loss, batch_size=6, max_steps=1, eval_every_steps=1, tokens_per_forward=60
    )
    config = replace(config, dtype=Dtype.float64, attention=attention)
    reference, out = tmp_path / "reference", tmp_path / "out"
    run_reference(folder, records, config.reference(), Workplace(reference, tmp_path / "rs"))
    place = Workplace(out, tmp_path / "scratch")
    run_dpo(folder, records, reference, config, place, held_out=(records, reference))
    (log,) = log_of(out)
    for prefix, path in (("", folder), ("eval_", out)):
        weights = [aligned_weight(load_model(path, Dtype.float64), row) for row in records]
        assert log[f"{prefix}weights"] == pytest.approx(sum(weights) / 6, rel=1e-6)
    assert log["loss"] == pytest.approx(log["weights"] * math.log(2), rel=1e-12)
    after = tmp_path / "after"
    run_reference(out, records, config.reference(), Workplace(after, tmp_path / "as"))
    evaluated = preference_metrics(records, after, reference, loss)
    assert evaluated["eval_rewards/margins"]["value"] == pytest.approx(log["eval_rewards/margins"])
    assert "eval_loss" not in evaluated
    model = load_model(folder, Dtype.float64)
    read_alone(model)
    pack = make_pack(read_pairs(records, model.config.vocab_size))
    alone = TokenLogps(aligned_logps(model, pack), pack.lengths).sums() / pack.lengths
    expected = [aligned_weight(model, row) for row in records]
    assert alone.sum(dim=1).exp().clamp(max=1).tolist() == pytest.approx(expected, rel=1e-6)


def aligned_weight(model: PreTrainedModel, row: Mapping[str, Any]) -> float:
    """exp of the two means of log π − log Σ π², at most 1, as the paper writes it."""
    total, prompt = 0.0, list(row["prompt_ids"])
    for side in ("chosen", "rejected"):
        ids = list(row[f"{side}_ids"])
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        likely = logits.softmax(dim=-1)
        own = likely.gather(1, torch.tensor(ids)[:, None])[:, 0]
        total += (own / likely.square().sum(dim=-1)).log().mean().item()
    return min(1.0, math.exp(total))


def config(loss: Any, tokens_per_forward: int = 64) -> DpoConfig:
    return DpoConfig(
        batch_size=4,
        epochs=2.0,
        tokens_per_forward=tokens_per_forward,
        dtype=Dtype.float32,
        optimizer=OptimizerConfig(1e-3, Schedule.constant),
        eval_every_steps=2,
        loss=loss,
    )


def place(folder: Path) -> Workplace:
    return Workplace(folder, folder.with_name(f"{folder.name}-scratch"))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_run_starts_at_its_reference_learns_and_is_evaluated_by_the_same_loss(
    folder: Path, tmp_path: Path, loss: Any
) -> None:
    records, reference = pair_records(8), tmp_path / "reference"
    run_reference(folder, records, config(loss).reference(), place(reference))
    out = tmp_path / "out"
    held_out = (records, reference)
    run_dpo(folder, records, reference, config(loss), place(out), held_out)
    log = log_of(out)
    at_start = 2.5 if isinstance(loss, CombinedReference) else 1.0
    assert log[0]["loss"] == pytest.approx(at_start * torch.tensor(2.0).log().item(), rel=1e-6)
    assert log[-1]["eval_loss"] < log[0]["loss"]
    after = tmp_path / "after"
    run_reference(out, records, config(loss).reference(), place(after))
    metrics = preference_metrics(records, after, reference, loss)
    assert metrics["eval_loss"] == pytest.approx(log[-1]["eval_loss"], rel=1e-5)


def test_beta_dpo_goes_on_from_a_checkpoint_with_the_bits_of_a_run_in_one_piece(
    folder: Path, tmp_path: Path
) -> None:
    records, reference = pair_records(8), tmp_path / "reference"
    settings = replace(config(BetaDpo(0.3)), eval_every_steps=None, epochs=3.0)
    run_reference(folder, records, settings.reference(), place(reference))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_dpo(folder, records, reference, settings, place(whole))
    with pytest.raises(Left):
        run_dpo(folder, records, reference, settings, replace(place(parts), stopping=leaving_at(3)))
    run_dpo(folder, records, reference, settings, place(parts))
    assert folder_bytes(parts) == folder_bytes(whole)
    log = log_of(whole)
    assert [step["beta_dpo/kept"] for step in log] == [1.0] + [0.75] * 5
    assert len({step["beta_dpo/beta"] for step in log}) == 6
