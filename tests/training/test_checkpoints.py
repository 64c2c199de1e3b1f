"""A run that is killed and started again ends as if it had never been killed."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_processes import exit_code, start
from safetensors import safe_open
from tiny_models import (
    VOCABULARY,
    demonstration_records,
    folder_bytes,
    llama,
    model_folder,
    pair_records,
)
from waiting import kill_this_process, wait_until

from benchmarks.architectures import tiny
from steps.models import activation_checkpointing
from steps.models.config import LoraConfig
from steps.models.folders import load_model
from steps.models.workplace import Workplace
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import read_demonstrations
from steps.scoring.reference import run_reference
from steps.scoring.scorer import Scorer
from steps.training.checkpoints import Checkpoints
from steps.training.config import DpoConfig, OptimizerConfig, TrainConfig
from steps.training.objectives import sft_objective
from steps.training.recipes import run_dpo, run_sft
from steps.training.trainer import Trainer

STEPS = 6


def train_until(model: Path, work: Path, every_steps: int, killed_at: int | None) -> None:
    """A real run on a model with dropout; it kills itself once `killed_at` steps are reported."""
    torch.set_num_threads(1)

    def on_progress(done: int, total: int, metrics: object) -> None:
        with (work / "done").open("a") as file:
            file.write(f"{done}\n")
        if done == killed_at:
            kill_this_process()

    config = TrainConfig(
        batch_size=3,
        epochs=2,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2),
        checkpoint_every_steps=every_steps,
        eval_every_steps=2,
        keep_best="eval_loss",
    )
    run_sft(
        model,
        demonstration_records(9),
        config,
        Workplace(work / "out", work / "scratch", on_progress=on_progress),
        held_out=demonstration_records(4, seed=1),
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), lambda: llama(dropout=0.2, layers=1))


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run writes that is never killed."""
    work = tmp_path_factory.mktemp("undisturbed")
    run(model, work, every_steps=1, killed_at=None)
    return folder_bytes(work / "out")


def run(model: Path, work: Path, every_steps: int, killed_at: int | None) -> list[int]:
    """Runs to the end or the kill; returns the steps this process reported."""
    work.mkdir(exist_ok=True)
    (work / "done").unlink(missing_ok=True)
    ended = exit_code(train_until, model, work, every_steps, killed_at)
    assert ended == (0 if killed_at is None else -signal.SIGKILL)
    return [int(line) for line in (work / "done").read_text().split()]


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_with_the_same_bits(
    model: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    assert len(undisturbed["metrics.jsonl"].splitlines()) == STEPS
    resumed_at = set()
    for every_steps, kills in ((1, (3, STEPS)), (2, (1, 4))):
        for killed_at in kills:
            work = tmp_path / f"killed-{every_steps}-{killed_at}"
            run(model, work, every_steps, killed_at)
            done = run(model, work, every_steps, killed_at=None)
            assert done == list(range(done[0], STEPS + 1))
            # The write that the kill cut short is lost, and never more than that one.
            saved = min(killed_at, STEPS - 1) // every_steps * every_steps
            assert done[0] - 1 in (saved, max(0, saved - every_steps))
            resumed_at.add(done[0])
            assert folder_bytes(work / "out") == undisturbed
    assert len(resumed_at) > 2


LORA = LoraConfig(r=4, alpha=8.0, dropout=0.3)
UNLIKE = ("experts", "adapters with dropout, padded", "bfloat16")
"""What differs most from the model that the other tests kill."""
OF_ALL_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "packed, and all checkpointed": ("llama", {"activation_checkpointing": "full"}),
    "padded": ("llama", {"attention": "padded"}),
    "sinks and a window": ("granite_swa", {}),
    "experts": ("qwen3_moe", {"router_aux_loss_coef": 0.1}),
    "recurrences": ("qwen3_next", {}),
    "adapters with dropout": ("qwen3", {"lora": LORA}),
    "adapters with dropout, padded": ("gemma2", {"lora": LORA, "attention": "padded"}),
    "bfloat16": ("mistral", {"dtype": "bfloat16"}),
}


def train_pairs_until(model: Path, work: Path, settings: dict, killed_at: int | None) -> None:
    torch.set_num_threads(1)
    activation_checkpointing.LEAST_INPUT = 0
    config = DpoConfig(
        batch_size=3,
        tokens_per_forward=48,
        optimizer=OptimizerConfig(learning_rate=1e-2),
        checkpoint_every_steps=1,
        **settings,
    )
    rows = pair_records(18)
    if not (work / "reference").exists():
        run_reference(model, rows, config.reference(), Workplace(work / "reference", work / "rs"))

    def on_progress(done: int, total: int, metrics: object) -> None:
        if done == killed_at:
            kill_this_process()

    place = Workplace(work / "out", work / "scratch", on_progress=on_progress)
    run_dpo(model, rows, work / "reference", config, place)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=() if k in UNLIKE else pytest.mark.attack) for k in OF_ALL_KINDS],
)
def test_models_of_all_kinds_end_with_the_same_bits_after_a_kill(tmp_path: Path, kind: str) -> None:
    architecture, settings = OF_ALL_KINDS[kind]
    model = model_folder(tmp_path / "model", lambda: tiny(architecture, vocab_size=VOCABULARY))
    written = {}
    for kills in ((), (4,)):
        work = tmp_path / f"{kills}"
        work.mkdir()
        for killed_at in (*kills, None):
            ended = exit_code(train_pairs_until, model, work, settings, killed_at)
            assert ended == (0 if killed_at is None else -signal.SIGKILL)
        written[kills] = folder_bytes(work / "out")
    assert len(written[()]["metrics.jsonl"].splitlines()) == 6
    assert written[()] == written[4,]


@pytest.mark.parametrize(
    "delay", [0.02, *(pytest.param(other, marks=pytest.mark.attack) for other in (0.0, 0.1))]
)
def test_a_kill_at_any_moment_leaves_a_run_that_can_go_on(
    model: Path, tmp_path: Path, undisturbed: dict[str, bytes], delay: float
) -> None:
    """From outside, timed from the first checkpoint, so that it can strike within a later one."""
    work = tmp_path / "killed"
    work.mkdir()
    process = start(train_until, model, work, 1, None)
    wait_until((work / "scratch/checkpoints").exists, "the first checkpoint", every=0.005)
    process.join(delay)
    process.kill()
    process.join()
    run(model, work, every_steps=1, killed_at=None)
    assert folder_bytes(work / "out") == undisturbed


def new_trainer(model: Path) -> Trainer:
    loaded = load_model(model)
    use_packed_attention(loaded)
    return Trainer(Scorer(loaded, 64), OptimizerConfig())


def train_step(trainer: Trainer) -> None:
    objective = sft_objective(read_demonstrations(demonstration_records(3), VOCABULARY))
    batch = trainer.prepare(objective.groups)
    trainer.forward_backward(batch, objective.batch_loss(range(3), None))
    trainer.optim_step(1e-3).result()


def steps(count: int) -> list[dict]:
    return [{"step": i + 1} for i in range(count)]


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def saved(model: Path, tmp_path: Path) -> Checkpoints:
    """Checkpoints of steps 1 and 2."""
    trained = new_trainer(model)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=2)
    for step in (1, 2):
        train_step(trained)
        checkpoints.save(step, trained, steps(step))
    checkpoints.wait()
    return checkpoints


def test_a_checkpoint_has_its_name_only_once_all_of_it_is_on_the_disk(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses its power loses what is not on the disk, though a name may be there."""
    forced, named = set[Path](), list[Path]()
    force, rename = os.fsync, Path.rename

    def noted(descriptor: int) -> None:
        forced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        force(descriptor)

    def checked(folder: Path, final: Path) -> Path:
        assert {folder, *folder.iterdir()} <= forced
        named.append(final)
        return rename(folder, final)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", checked)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=1)
    trainer = new_trainer(model)
    train_step(trainer)
    checkpoints.save_best(1, trainer)
    checkpoints.save(1, trainer, steps(1), best=1)
    checkpoints.wait()
    assert len(named) == 2
    assert tmp_path / "checkpoints" in forced


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "state.safetensors", 1000),
        lambda folder: (folder / "state.safetensors").unlink(),
        lambda folder: (folder / "metrics.jsonl").write_text(""),
        lambda folder: (folder / "checkpoint.json").unlink(),
        lambda folder: (folder / "checkpoint.json").write_text('{"step": 2, "fi'),
        lambda folder: (folder / "checkpoint.json").write_text("null"),
        lambda folder: edit_json(folder / "checkpoint.json", files={}),
        lambda folder: edit_json(folder / "checkpoint.json", best=1),
    ],
    ids=["short state", "no state", "short metrics", "no manifest", "torn manifest", "null",
         "no files", "another best"],
)  # fmt: skip
def test_a_torn_checkpoint_is_passed_over(saved: Checkpoints, model: Path, damage) -> None:
    damage(saved.directory / "step-000002")
    fresh = new_trainer(model)
    assert saved.restore(fresh) == steps(1)
    saved.save(2, fresh, steps(2))
    saved.wait()
    assert saved.latest() == saved.directory / "step-000002"


def test_older_checkpoints_are_removed_and_a_torn_newer_one_does_not_save_itself(
    saved: Checkpoints, model: Path
) -> None:
    (saved.directory / "step-000009").mkdir()
    saved.save(3, new_trainer(model), [])
    saved.wait()
    names = sorted(folder.name for folder in saved.directory.iterdir())
    assert names == ["step-000002", "step-000003"]


def test_a_users_copy_of_a_checkpoint_is_neither_read_nor_removed(
    saved: Checkpoints, model: Path
) -> None:
    copies = ["step-000002 (copy)", "step-000001.bak", "step-7", "best-000001 (copy)"]
    for name in copies:
        shutil.copytree(saved.directory / "step-000002", saved.directory / name)
    assert saved.restore(new_trainer(model)) == steps(2)
    saved.save(3, new_trainer(model), steps(3), best=None)
    saved.wait()
    names = {folder.name for folder in saved.directory.iterdir()}
    assert names == {"step-000002", "step-000003", *copies}


def test_the_best_weights_stay_as_long_as_a_checkpoint_relies_on_them(
    saved: Checkpoints, model: Path
) -> None:
    trained = new_trainer(model)
    expected = trained.get_weights().result()
    saved.save_best(1, trained)
    saved.save(3, trained, steps(3), best=1)
    train_step(trained)
    saved.save_best(4, trained)
    saved.wait()
    stored = saved.best_weights(1)
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name][...], expected[name]) for name in expected)
    saved.save(4, trained, steps(4), best=4)
    saved.wait()  # the checkpoint of step 3, which may be gone back to, still wants those of step 1
    assert (saved.directory / "best-000001").exists()
    saved.save(5, trained, steps(5), best=4)
    saved.wait()
    names = sorted(folder.name for folder in saved.directory.iterdir())
    assert names == ["best-000004", "step-000004", "step-000005"]


def test_damaged_best_weights_are_not_taken_for_good(saved: Checkpoints, model: Path) -> None:
    saved.save_best(1, new_trainer(model))
    saved.wait()
    os.truncate(saved.directory / "best-000001/weights.safetensors", 100)
    with pytest.raises(ValueError, match="best-000001 is damaged"):
        saved.best_weights(1)


def test_a_checkpoint_whose_best_weights_are_damaged_is_passed_over(
    saved: Checkpoints, model: Path
) -> None:
    """Otherwise the run would go on for hours, and end with an error."""
    trained = new_trainer(model)
    saved.save_best(3, trained)
    saved.save(3, trained, steps(3), best=3)
    saved.wait()
    assert saved.latest() == saved.directory / "step-000003"
    os.truncate(saved.directory / "best-000003/weights.safetensors", 100)
    assert saved.latest() == saved.directory / "step-000002"


def test_a_checkpoint_of_another_model_is_refused(saved: Checkpoints, tmp_path: Path) -> None:
    other = model_folder(tmp_path / "other", lambda: llama(tied=False))
    with pytest.raises(ValueError, match=r"step-000002 belongs to another model .*lm_head"):
        saved.restore(new_trainer(other))


def test_a_checkpoint_is_safetensors_and_json_with_tied_weights_once(saved: Checkpoints) -> None:
    folder = saved.latest()
    assert folder is not None
    assert sorted(file.name for file in folder.iterdir()) == [
        "checkpoint.json",
        "metrics.jsonl",
        "state.safetensors",
    ]
    assert json.loads((folder / "checkpoint.json").read_text())["step"] == 2
    with safe_open(folder / "state.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert "model/model.embed_tokens.weight" in names
    assert "optimizer/exp_avg/model.embed_tokens.weight" in names
    assert not any("lm_head" in name for name in names)
