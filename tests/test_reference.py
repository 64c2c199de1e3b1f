"""Reference logps: computed once, kept by shard, found by what a pair is."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import VOCABULARY, model_folder, pair_records

from steps.training.config import DpoConfig, Dtype, ReferenceConfig
from steps.training.dpo import run_dpo
from steps.training.examples import read_pairs
from steps.training.logps import score_pairs
from steps.training.models import load_model
from steps.training.reference import read_reference, run_reference

SHARDS_OF_TWO = ReferenceConfig(micro_batches_per_shard=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


def compute(model: Path, records: list[dict], work: Path, config=SHARDS_OF_TWO, **options) -> dict:
    return run_reference(
        model, records, config, output=work / "out", scratch=work / "scratch", **options
    )


def modified(work: Path) -> dict[str, int]:
    return {f.name: f.stat().st_mtime_ns for f in (work / "scratch/shards").glob("*.parquet")}


def test_holds_the_logps_of_every_distinct_pair(model: Path, tmp_path: Path) -> None:
    records = pair_records(5)
    reports = []
    summary = compute(
        model,
        [*records, {**records[2], "row": "a duplicate"}],
        tmp_path,
        on_progress=lambda done, total, metrics: reports.append((done, total)),
    )
    pairs = read_pairs(records, VOCABULARY)
    chosen, rejected = score_pairs(load_model(model), pairs)
    table = pq.read_table(tmp_path / "out/logps.parquet")
    assert table["pair_id"].to_pylist() == [r["pair_id"] for r in records]
    assert table["chosen_logps"].to_pylist() == chosen.tolist()
    assert table["rejected_logps"].to_pylist() == rejected.tolist()
    assert reports == [(2, 5), (4, 5), (5, 5)]
    assert summary["pairs"] == 5
    assert summary["logps/chosen"] == pytest.approx(chosen.mean().item())


def test_is_found_by_pair_whatever_the_order(model: Path, tmp_path: Path) -> None:
    records = pair_records(7)
    compute(model, records, tmp_path)
    pairs = read_pairs(reversed(records), VOCABULARY)
    chosen, rejected = read_reference(tmp_path / "out", pairs, Dtype.float32)
    expected = score_pairs(load_model(model), pairs)
    assert torch.equal(chosen, expected[0])
    assert torch.equal(rejected, expected[1])


def test_an_interrupted_computation_keeps_its_finished_shards(model: Path, tmp_path: Path) -> None:
    records = pair_records(7)

    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int, metrics: object) -> None:
        if done == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        compute(model, records, tmp_path, on_progress=interrupt)
    finished = modified(tmp_path)
    assert sorted(finished) == ["shard-00000.parquet", "shard-00001.parquet"]
    compute(model, records, tmp_path)
    assert finished.items() <= modified(tmp_path).items()
    compute(model, records, tmp_path / "whole")
    resumed, whole = (work / "out/logps.parquet" for work in (tmp_path, tmp_path / "whole"))
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_torn_shard_is_computed_again(model: Path, tmp_path: Path) -> None:
    records = pair_records(4)
    compute(model, records, tmp_path)
    whole = (tmp_path / "out/logps.parquet").read_bytes()
    before = modified(tmp_path)
    os.truncate(tmp_path / "scratch/shards/shard-00001.parquet", 100)
    compute(model, records, tmp_path)
    assert (tmp_path / "out/logps.parquet").read_bytes() == whole
    after = modified(tmp_path)
    assert after["shard-00000.parquet"] == before["shard-00000.parquet"]
    assert after["shard-00001.parquet"] != before["shard-00001.parquet"]


def test_a_shard_of_other_pairs_is_not_used(model: Path, tmp_path: Path) -> None:
    compute(model, pair_records(4, seed=1), tmp_path)
    compute(model, pair_records(4, seed=2), tmp_path)
    compute(model, pair_records(4, seed=2), tmp_path / "fresh")
    reused, fresh = (work / "out/logps.parquet" for work in (tmp_path, tmp_path / "fresh"))
    assert reused.read_bytes() == fresh.read_bytes()


def train_against(reference: Path, model: Path, records: list[dict], config: DpoConfig) -> None:
    work = reference.parent
    run_dpo(model, records, reference, config, output=work / "dpo", scratch=work / "dpo-scratch")


def test_training_on_a_pair_without_a_reference_names_the_pair(model: Path, tmp_path: Path) -> None:
    records = pair_records(5)
    compute(model, records[:3] + records[4:], tmp_path)
    message = rf"lacks 1 of 5 pairs.* {records[3]['pair_id']} \(row 'data:3'\)"
    with pytest.raises(ValueError, match=message):
        train_against(tmp_path / "out", model, records, DpoConfig())


def test_a_reference_in_another_dtype_is_refused(model: Path, tmp_path: Path) -> None:
    records = pair_records(2)
    compute(model, records, tmp_path, ReferenceConfig(dtype=Dtype.bfloat16))
    with pytest.raises(ValueError, match="computed in bfloat16 but the policy runs in float32"):
        train_against(tmp_path / "out", model, records, DpoConfig())


def test_logps_that_are_not_finite_name_the_pair(model: Path, tmp_path: Path) -> None:
    broken = load_model(model)
    with torch.no_grad():
        broken.get_parameter("model.norm.weight").fill_(torch.nan)
    broken.save_pretrained(tmp_path / "broken")
    records = pair_records(1)
    with pytest.raises(FloatingPointError, match=f"pair {records[0]['pair_id']}"):
        compute(tmp_path / "broken", records, tmp_path)
