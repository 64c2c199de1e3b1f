"""Steps for losses with a reference, without one, and for single responses: composed, and run."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from step_output import Folder
from tiny_models import model_folder, pair_records, token_files, unpaired_records

from pipeline import Artifact, Step, TemperError, adopt
from steps.data.tokens.token_tables import COMPLETION_TOKENS
from steps.kinds import Model, PairTokens
from steps.losses.cpo import Cpo
from steps.losses.dpo import Dpo
from steps.losses.ipo import Ipo
from steps.losses.kto import Kto
from steps.losses.simpo import Simpo
from steps.reference_logprobs import reference_logprobs
from steps.train_dpo import train_dpo
from steps.train_kto import train_kto, unbalanced
from steps.train_on_pairs import train_on_pairs
from steps.train_reference_free import train_reference_free
from steps.training.config import (
    DpoConfig,
    KtoConfig,
    OptimizerConfig,
    PreferenceConfig,
    ReferenceFreeConfig,
    TrainConfig,
)


@pytest.fixture
def pairs(tmp_path: Path) -> Step:
    return adopted(tmp_path, "pairs", PairTokens)


@pytest.fixture
def policy(tmp_path: Path) -> Step:
    return adopted(tmp_path, "policy", Model)


def adopted(folder: Path, name: str, kind: type[Artifact]) -> Step:
    (folder / name).mkdir()
    (folder / name / "content").write_text(name)
    return adopt(str(folder / name), kind)


def upstream(step: Step) -> set[str]:
    above = {step.name}
    for reference in step.inputs:
        above |= upstream(reference.step)
    return above - {"adopt_files"}


# --- composing ------------------------------------------------------------------------------------


def test_a_reference_is_computed_for_the_losses_that_want_one(pairs: Step, policy: Step) -> None:
    for loss in (Dpo(), Ipo()):
        step = train_on_pairs(pairs, policy, PreferenceConfig(loss=loss))
        assert upstream(step) == {"train_dpo", "reference_logprobs"}
    for loss in (Simpo(), Cpo()):
        step = train_on_pairs(pairs, policy, PreferenceConfig(loss=loss))
        assert upstream(step) == {"train_reference_free"}


def test_the_reference_is_computed_as_the_policy_is_trained(pairs: Step, policy: Step) -> None:
    config = PreferenceConfig(tokens_per_forward=77)
    by_hand = reference_logprobs(pairs, model=policy, config=config.reference())
    composed = train_on_pairs(pairs, policy, config)
    assert by_hand.fingerprint in {reference.step.fingerprint for reference in composed.inputs}
    assert config.reference().tokens_per_forward == 77


def test_held_out_pairs_bear_on_training_only_if_they_are_looked_at(
    pairs: Step, policy: Step, tmp_path: Path
) -> None:
    others = adopted(tmp_path, "others", PairTokens)
    config = PreferenceConfig()
    alone = train_on_pairs(pairs, policy, config).fingerprint
    assert train_on_pairs(pairs, policy, config, held_out=others).fingerprint == alone
    looking = PreferenceConfig(eval_every_steps=2)
    step = train_on_pairs(pairs, policy, looking, held_out=others)
    references = [i.step for i in step.inputs if i.step.name == "reference_logprobs"]
    assert len(references) == 2  # of the pairs, and of the held-out ones


def test_a_reference_given_to_a_loss_that_needs_none_is_refused(pairs: Step, policy: Step) -> None:
    reference = reference_logprobs(pairs, model=policy)
    with pytest.raises(ValueError, match=r"simpo needs no reference.*train_reference_free"):
        DpoConfig(loss=Simpo())  # pyright: ignore[reportArgumentType]
    for config in (ReferenceFreeConfig(), PreferenceConfig(), TrainConfig()):
        taken = rf"train_dpo\(config\) takes DpoConfig, and was given a {type(config).__name__}"
        with pytest.raises(TemperError, match=taken):
            train_dpo(pairs, policy, reference, config)
    with pytest.raises(TemperError, match="unexpected keyword argument 'reference'"):
        train_reference_free(pairs, policy, reference=reference)


def test_a_loss_without_the_reference_it_needs_is_refused(pairs: Step, policy: Step) -> None:
    with pytest.raises(ValueError, match=r"ipo compares .* with a reference.*reference_logprobs"):
        ReferenceFreeConfig(loss=Ipo())  # pyright: ignore[reportArgumentType]
    with pytest.raises(TemperError, match="missing a required argument: 'reference'"):
        train_dpo(pairs, policy)
    with pytest.raises(TemperError, match=r"train_dpo\(reference\) takes ReferenceLogps"):
        train_dpo(pairs, policy, None)
    with pytest.raises(TemperError, match="takes ReferenceFreeConfig, and was given a DpoConfig"):
        train_reference_free(pairs, policy, DpoConfig())


# --- running --------------------------------------------------------------------------------------

FAST: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 4,
    "optimizer": OptimizerConfig(learning_rate=1e-2),
}


class Trained(Folder):
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(x) for x in (self.path / "metrics.jsonl").read_text().splitlines()]


def artifact(path: Path) -> Any:
    return SimpleNamespace(path=path, digest="0" * 32)


def written(folder: Path, schema: pa.Schema, records: list[dict[str, Any]]) -> Any:
    return artifact(token_files(folder, schema, records))


def test_kto_runs_from_single_responses_to_a_model(tmp_path: Path) -> None:
    records = unpaired_records(pair_records(8), every=2)
    tokens = written(tmp_path / "tokens", COMPLETION_TOKENS, records)
    policy = artifact(model_folder(tmp_path / "policy"))
    config = KtoConfig(**FAST, eval_every_steps=3)
    reference, model = Trained(tmp_path / "reference"), Trained(tmp_path / "model")
    reference_logprobs.function(reference, tokens, policy, config.reference())
    before = artifact(reference.path)
    metrics = train_kto.function(model, tokens, policy, before, config, tokens, before)
    assert "notices" not in (metrics or {})  # four good responses and four bad ones
    first, *_, last = model.log()
    assert first["loss"] == pytest.approx(0.5, abs=1e-6)
    assert first["kl"] == 0
    assert last["rewards/margins"] > 0
    assert last["eval_loss"] < 0.5
    assert (model.path / "model.safetensors").is_file()
    assert "kto, first and last step" in (model.path / "summary.md").read_text()


@pytest.mark.parametrize(
    ("good", "bad", "weights", "told"),
    [
        (5, 5, {}, ""),
        (20, 15, {}, ""),
        (3, 9, {}, "0.33 times as much .* desirable_weight to 3 to 4"),
        (3, 9, {"desirable_weight": 3.5}, ""),
        (9, 3, {}, "3 times as much .* undesirable_weight to 2.25 to 3"),
        (9, 3, {"desirable_weight": 0.0}, ""),  # to unlearn the bad ones
        (4, 0, {}, "all 4 responses are good, so nothing shows the model what to avoid"),
        (0, 4, {}, "all 4 responses are bad"),
    ],
)
def test_weights_that_do_not_balance_good_and_bad_responses_are_told(
    good: int, bad: int, weights: dict[str, float], told: str
) -> None:
    notices = unbalanced(Kto(**weights), [True] * good + [False] * bad)
    assert len(notices) == bool(told)
    assert re.search(told, "".join(notices))
