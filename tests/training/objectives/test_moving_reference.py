"""A reference that follows the policy, beside a textbook run that keeps a second model; killed and
gone on from."""

import copy
from dataclasses import replace
from pathlib import Path

import oracle
import pytest
import torch
from tiny_models import folder_bytes, log_of, model_folder, pair_records
from waiting import leaving_at

from steps.losses.dpo import Dpo
from steps.losses.simpo import Simpo
from steps.losses.token_level.ld_dpo import LdDpo
from steps.losses.whole_batch.beta_dpo import BetaDpo
from steps.models.config import Dtype, LoraConfig
from steps.models.workplace import Left, Workplace
from steps.scoring.reference import run_reference
from steps.training.config import (
    DpoConfig,
    OptimizerConfig,
    PreferenceConfig,
    Schedule,
    by_family,
)
from steps.training.recipes import run_dpo
from steps.training.schedule import batch_indices

RATE, BETA = 1e-3, 0.3
CONFIG = DpoConfig(
    batch_size=4,
    epochs=3.0,
    tokens_per_forward=64,
    dtype=Dtype.float64,
    optimizer=OptimizerConfig(RATE, Schedule.constant, max_grad_norm=None),
    loss=Dpo(BETA),
    follow_every=2,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


@pytest.fixture
def reference(folder: Path, tmp_path: Path) -> Path:
    run_reference(folder, pair_records(8), CONFIG.reference(), place(tmp_path / "reference"))
    return tmp_path / "reference"


def place(folder: Path) -> Workplace:
    return Workplace(folder, folder.with_name(f"{folder.name}-scratch"))


@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_the_reference_is_the_policy_of_the_last_update_or_a_mixture(
    folder: Path, reference: Path, tmp_path: Path, alpha: float
) -> None:
    records, out = pair_records(8), tmp_path / "out"
    run_dpo(folder, records, reference, replace(CONFIG, follow_alpha=alpha), place(out))
    log = log_of(out)
    expected = textbook(folder, steps=6, every=2, alpha=alpha)
    assert [step["loss"] for step in log] == pytest.approx(expected, rel=1e-7)
    margins = [step["rewards/margins"] for step in log]
    moves = alpha == 1
    assert [margin == 0 for margin in margins] == [True, False, moves, False, moves, False]


def textbook(folder: Path, steps: int, every: int, alpha: float) -> list[float]:
    records, policy = pair_records(8), oracle.load(folder)
    other = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), RATE, weight_decay=0.0)
    losses = []
    for step in range(steps):
        total = torch.zeros((), dtype=torch.float64)
        for index in batch_indices(len(records), 4, step, CONFIG.seed):
            row = records[index]
            sides = row["prompt_ids"], [row["chosen_ids"], row["rejected_ids"]]
            with torch.no_grad():
                theirs = oracle.group_logps(other, *sides)
            mine = oracle.group_logps(policy, *sides)
            total = total + oracle.dpo(mine[0], mine[1], theirs[0], theirs[1], BETA) / 4
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
        if (step + 1) % every == 0:
            with torch.no_grad():
                for theirs, mine in zip(other.parameters(), policy.parameters(), strict=True):
                    theirs.mul_(1 - alpha).add_(mine, alpha=alpha)
    return losses


@pytest.mark.parametrize(
    ("loss", "killed_at", "alpha"),
    [
        (Dpo(BETA), 4, 1.0),
        (BetaDpo(BETA), 5, 1.0),
        (Dpo(BETA), 1, 0.6),
        (Dpo(BETA), 5, 0.6),
    ],
    ids=str,
)
def test_a_run_goes_on_to_the_bit_wherever_it_was_left(
    folder: Path, tmp_path: Path, loss: Dpo | BetaDpo, killed_at: int, alpha: float
) -> None:
    settings = replace(CONFIG, loss=loss, follow_every=3, follow_alpha=alpha, epochs=4.0)
    records, settings = pair_records(8), replace(settings, dtype=Dtype.bfloat16)
    reference = tmp_path / "reference"
    run_reference(folder, records, settings.reference(), place(reference))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_dpo(folder, records, reference, settings, place(whole))
    with pytest.raises(Left):
        run_dpo(
            folder,
            records,
            reference,
            settings,
            replace(place(parts), stopping=leaving_at(killed_at)),
        )
    run_dpo(folder, records, reference, settings, place(parts))
    assert folder_bytes(parts) == folder_bytes(whole)


def test_settings_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="follow_every is set, but the loss simpo has no ref"):
        PreferenceConfig(loss=Simpo(), follow_every=5)
    with pytest.raises(ValueError, match="ld_dpo looks at single tokens"):
        DpoConfig(loss=LdDpo(), follow_every=5)
    with pytest.raises(ValueError, match="follow_every"):
        DpoConfig(follow_every=0)
    soft = {"follow_every": 5, "follow_alpha": 0.5}
    assert by_family(PreferenceConfig(**soft)) == DpoConfig(**soft)
    with pytest.raises(ValueError, match=r"follow_alpha=0.5 needs follow_every"):
        DpoConfig(follow_alpha=0.5)
    with pytest.raises(ValueError, match="leave out lora"):
        DpoConfig(**soft, lora=LoraConfig())
    with pytest.raises(ValueError, match="check_start=true"):
        DpoConfig(**soft, check_start=False)
