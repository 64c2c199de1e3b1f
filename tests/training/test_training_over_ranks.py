"""Training and scoring over two ranks, as steps start them, give what one gives."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks
from safetensors.torch import load_file
from tiny_models import (
    demonstration_records,
    folder_bytes,
    log_of,
    model_folder,
    pair_records,
    uneven,
    unpaired_records,
)
from waiting import leaving_at

from steps.losses.combined import CombinedReference
from steps.losses.cpo import Cpo
from steps.losses.dpo import Dpo
from steps.losses.token_level.ld_dpo import LdDpo
from steps.losses.whole_batch.aot import Aot
from steps.losses.whole_batch.aot_unpaired import AotUnpaired
from steps.losses.with_reference.wpo import Wpo
from steps.models.config import ActivationCheckpointing, LoraConfig
from steps.models.ranks import ALONE, Ranks, together
from steps.models.workplace import Left, Workplace
from steps.scoring.reference import read_reference, run_reference
from steps.training.config import (
    DpoConfig,
    KtoConfig,
    OptimizerConfig,
    ReferenceFreeConfig,
    Schedule,
    TrainConfig,
)
from steps.training.recipes import run_dpo, run_kto, run_reference_free, run_sft

FAST = OptimizerConfig(learning_rate=1e-2, schedule=Schedule.constant)
SETTINGS: dict[str, Any] = {"batch_size": 4, "tokens_per_forward": 64, "optimizer": FAST}
HELD_OUT: dict[str, Any] = {"eval_every_steps": 1, "keep_best": "eval_loss"}
RECORDS = pair_records(14)
OTHERS = pair_records(5, seed=1)


@dataclass(frozen=True)
class Job:
    """A run in `work`; `leave_after` so many steps the last rank is told to leave.

    Scratch is on one disk, unless every rank is said to have its own.
    """

    config: TrainConfig
    work: Path
    leave_after: int | None = None
    own_disks: bool = False

    def do(self, model: Path, ranks: Ranks) -> None:
        stopping = leaving_at(self.leave_after if ranks.index == ranks.count - 1 else None)

        def on_progress(done: int, total: int, metrics: object) -> None:
            with (self.work / "done").open("a") as file:
                file.write(f"{done}\n")

        disk = f"scratch-{ranks.index}" if self.own_disks else "scratch"
        place = Workplace(self.work / "model", self.work / disk, ranks=ranks, stopping=stopping)
        if ranks.is_first:
            self.work.mkdir(parents=True, exist_ok=True)
            place = replace(place, on_progress=on_progress)
        try:
            self._train(model, place)
        except Left:
            assert self.leave_after is not None

    def _train(self, model: Path, place: Workplace) -> None:
        config, ranks = self.config, place.ranks
        if isinstance(config, KtoConfig):
            rows, others = unpaired_records(RECORDS), unpaired_records(OTHERS)
            references = [self._reference(model, r, n, ranks) for n, r in enumerate((rows, others))]
            run_kto(model, rows, references[0], config, place, (others, references[1]))
        elif isinstance(config, DpoConfig):
            references = [
                self._reference(model, r, n, ranks) for n, r in enumerate((RECORDS, OTHERS))
            ]
            run_dpo(model, RECORDS, references[0], config, place, (OTHERS, references[1]))
        elif isinstance(config, ReferenceFreeConfig):
            run_reference_free(model, RECORDS, config, place, OTHERS)
        else:
            records = demonstration_records(14)
            run_sft(model, records, config, place, demonstration_records(5, 1))

    def _reference(self, model: Path, rows: list[dict], number: int, ranks: Ranks) -> Path:
        folder = self.work / f"reference-{number}"
        scoring = replace(self.config.reference(), groups_per_shard=4)
        scratch = self.work / f"reference-scratch-{number}"
        run_reference(model, rows, scoring, Workplace(folder, scratch, ranks=ranks))
        ranks.wait()
        return folder


def do_all(jobs: list[Job], model: Path) -> None:
    with together() as ranks:
        for job in jobs:
            job.do(model, ranks)


def log(job: Job) -> list[dict]:
    return log_of(job.work / "model")


def assert_close(made: Job, expected: Job, tolerance: float = 1e-4) -> None:
    """The same files, the same curves and weights but for rounding."""
    assert folder_bytes(made.work / "model").keys() == folder_bytes(expected.work / "model").keys()
    for step, other in zip(log(made), log(expected), strict=True):
        assert step == pytest.approx(other, rel=tolerance, abs=tolerance)
    mine, theirs = (load_file(job.work / "model/model.safetensors") for job in (made, expected))
    assert mine.keys() == theirs.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], rtol=tolerance, atol=tolerance)


CONFIGS: dict[str, TrainConfig] = {
    "sft": TrainConfig(**SETTINGS, **HELD_OUT, epochs=2),
    "dpo": DpoConfig(**SETTINGS, **HELD_OUT, loss=Dpo(beta=0.3, nll_weight=0.3), ema_decay=0.5),
    "stopped": replace(
        DpoConfig(**SETTINGS, **HELD_OUT, early_stop_patience=1, epochs=4),
        optimizer=replace(FAST, learning_rate=0.3),
    ),
    "lora": DpoConfig(
        **SETTINGS,
        epochs=2,
        loss=Wpo(align=True),
        lora=LoraConfig(r=4, dropout=0.2),
        activation_checkpointing=ActivationCheckpointing.full,
    ),
    "tokens and batch": DpoConfig(
        **SETTINGS,
        **HELD_OUT,
        loss=CombinedReference({"ld": LdDpo(), "aot": Aot(), "unpaired": AotUnpaired()}),
    ),
    "kto": KtoConfig(**SETTINGS, **HELD_OUT),
    "cpo": ReferenceFreeConfig(**SETTINGS, loss=Cpo()),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), uneven)


@pytest.mark.slow
def test_two_ranks_train_what_one_does(model: Path, tmp_path: Path) -> None:
    alone = {name: Job(config, tmp_path / "1" / name) for name, config in CONFIGS.items()}
    both = {name: Job(config, tmp_path / "2" / name) for name, config in CONFIGS.items()}
    assert run_ranks(do_all, list(both.values()), model) == [0, 0]
    for name, job in alone.items():
        job.do(model, ALONE)
        assert_close(both[name], job, 1e-2 if name == "stopped" else 1e-4)
        assert len(log(job)) > 1
    assert len(log(alone["stopped"])) < 16
    assert (tmp_path / "2/lora/model/adapter/adapter_model.safetensors").exists()
    for name in ("dpo", "kto"):
        one, two = (read_reference(tmp_path / n / name / "reference-0") for n in "12")
        two.scored_by.require_comparable(one.scored_by, tmp_path)
        assert two.model == one.model
        torch.testing.assert_close(torch.tensor(two._logps), torch.tensor(one._logps))


@pytest.mark.slow
def test_a_run_that_leaves_goes_on_with_as_many_ranks_or_others(
    model: Path, tmp_path: Path
) -> None:
    config = CONFIGS["dpo"]
    jobs = {name: Job(config, tmp_path / name) for name in ("whole", "2 to 2", "2 to 1", "1 to 2")}
    leaving = {name: replace(job, leave_after=2) for name, job in jobs.items() if name != "whole"}
    leaving["1 to 2"].do(model, ALONE)
    in_ranks = [jobs["whole"], leaving["2 to 2"], jobs["2 to 2"], leaving["2 to 1"], jobs["1 to 2"]]
    assert run_ranks(do_all, in_ranks, model) == [0, 0]
    assert sorted(p.name for p in (tmp_path / "2 to 1/scratch/checkpoints").glob("step*/*")) == [
        "checkpoint.json",
        "metrics.jsonl",
        "state-00000-of-00002.safetensors",
        "state-00001-of-00002.safetensors",
    ]
    jobs["2 to 1"].do(model, ALONE)
    bits = {name: folder_bytes(job.work / "model") for name, job in jobs.items()}
    assert bits["2 to 2"] == bits["whole"]
    for name in ("2 to 1", "1 to 2"):
        assert len(log(jobs[name])) == 4
        assert_close(jobs[name], jobs["whole"])


@pytest.mark.slow
def test_a_checkpoint_without_the_part_of_another_disk_is_passed_over(
    model: Path, tmp_path: Path
) -> None:
    """Every rank on a node of its own, whose scratch is brought together before the next attempt:
    of the last checkpoint, one part was lost with its node."""
    config = replace(CONFIGS["sft"], checkpoint_every_steps=1, keep_last=2)
    whole = Job(config, tmp_path / "whole")
    left = Job(config, tmp_path / "left", leave_after=3, own_disks=True)
    assert run_ranks(do_all, [whole, left], model) == [0, 0]
    disks = [left.work / f"scratch-{rank}/checkpoints" for rank in range(2)]
    for rank, disk in enumerate(disks):
        steps = sorted(folder.name for folder in disk.glob("step-*"))
        assert steps == ["step-000002", "step-000003"]
        parts = sorted(file.name for file in disk.glob("step-*/state*"))
        assert parts == [f"state-{rank:05d}-of-00002.safetensors"] * 2
    lost = disks[1] / "step-000003/state-00001-of-00002.safetensors"
    lost.unlink()
    for source, target in (disks, disks[::-1]):
        for file in source.glob("*/*"):
            shutil.copyfile(file, target / file.relative_to(source))
    (left.work / "done").unlink()
    assert run_ranks(do_all, [replace(left, leave_after=None)], model) == [0, 0]
    assert (left.work / "done").read_text().split()[0] == "3"
    assert folder_bytes(left.work / "model") == folder_bytes(whole.work / "model")
