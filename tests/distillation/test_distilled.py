"""Training against a cached teacher: beside whole distributions in float64; resumed; with adapters,
held-out rows and ranks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks
from step_output import Folder
from tiny_models import (
    VOCABULARY,
    demonstration_records,
    folder_bytes,
    gemma2,
    llama,
    log_of,
    model_folder,
)

from pipeline import TemperError
from steps.distillation.cached_teacher import run_teacher
from steps.distillation.config import Precision, TeacherConfig
from steps.distillation.distilled import run_distilled
from steps.functional_backend.functional_choice import FunctionalTraining
from steps.kinds import Artifact
from steps.losses.distillation.distillation_loss import DistillationLoss
from steps.losses.distillation.forward_kl import ForwardKl
from steps.losses.distillation.jsd import Jsd
from steps.losses.distillation.reverse_kl import ReverseKl
from steps.losses.distillation.skew_kl import SkewKl
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model
from steps.models.ranks import together
from steps.models.workplace import Workplace
from steps.scoring.config import Attention
from steps.train_sft import train_sft
from steps.training.config import OptimizerConfig, TrainConfig

ROWS = 9
RECORDS, HELD_OUT = demonstration_records(ROWS), demonstration_records(4, seed=3)
WHOLE = TeacherConfig(dtype=Dtype.float64, precision=Precision.float32, top_k=VOCABULARY)
CONFIG = TrainConfig(
    dtype=Dtype.float64,
    batch_size=3,
    tokens_per_forward=40,
    checkpoint_every_steps=1,
    checkpoint_every_seconds=None,
    optimizer=OptimizerConfig(learning_rate=1e-2, max_grad_norm=None),
)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """Of another shape than the student."""
    return model_folder(tmp_path / "teacher", lambda: llama(layers=2), seed=1)


def taught(teacher: Path, work: Path, config: TeacherConfig, records: list[dict]) -> Path:
    run_teacher(teacher, records, config, Workplace(work, work / "scratch"), work)
    return work


def dense(
    student: Path, teacher: Path, loss: DistillationLoss, records: list[dict]
) -> tuple[float, float]:
    """The loss of the records as one batch, and the norm of its gradient, from whole logits."""
    models = [load_model(folder, Dtype.float64) for folder in (student, teacher)]
    values, likelihoods = [], []
    for record in records:
        start, ids = len(record["prompt_ids"]) - 1, record["prompt_ids"] + record["response_ids"]
        q, p = (model(torch.tensor([ids])).logits[0, start:-1].double() for model in models)
        student_p, teacher_p = ((z / loss.temperature).log_softmax(-1) for z in (q, p))
        values.append(loss.divergences(student_p, teacher_p.detach()))
        targets = torch.tensor(record["response_ids"])[:, None]
        likelihoods.append(q.log_softmax(-1).gather(1, targets)[:, 0])
    w = loss.cross_entropy
    total = ((1 - w) * torch.cat(values) - w * torch.cat(likelihoods)).mean()
    total.backward()
    gradients = [p.grad.norm() for p in models[0].parameters() if p.grad is not None]
    return float(total.detach()), float(torch.stack(gradients).norm())


@pytest.mark.parametrize(
    ("loss", "build", "attention"),
    [
        (ForwardKl(), llama, Attention.packed),
        (ReverseKl(temperature=2.0), llama, Attention.padded),
        (Jsd(beta=0.3, temperature=1.4, cross_entropy=0.25), llama, Attention.packed),
        (SkewKl(cross_entropy=0.5), gemma2, Attention.auto),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_step_has_the_loss_and_gradient_of_whole_distributions(
    loss: DistillationLoss, build: Any, attention: Attention, teacher: Path, tmp_path: Path
) -> None:
    student = model_folder(tmp_path / "student", build)
    known = taught(teacher, tmp_path / "known", WHOLE, RECORDS)
    config = replace(CONFIG, batch_size=ROWS, max_steps=1, attention=attention)
    place = Workplace(tmp_path / "out", tmp_path / "scratch")
    run_distilled(student, RECORDS, config, place, loss, known)
    (log,) = log_of(tmp_path / "out")
    expected, norm = dense(student, teacher, loss, RECORDS)
    assert log["loss"] == pytest.approx(expected, abs=1e-6)  # the norms of models are in float32
    assert log["grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_a_student_that_is_its_teacher_has_nothing_to_learn(teacher: Path, tmp_path: Path) -> None:
    for k, temperature in ((8, 1.0), (8, 2.0), (VOCABULARY, 1.5)):
        work = tmp_path / f"{k}-{temperature}"
        known = taught(teacher, work / "known", replace(WHOLE, top_k=k), RECORDS)
        config = replace(CONFIG, max_steps=1)
        place = Workplace(work / "out", work / "scratch")
        run_distilled(teacher, RECORDS, config, place, Jsd(temperature), known)
        (log,) = log_of(work / "out")
        assert log["loss/divergence"] == pytest.approx(0, abs=1e-12)
        assert log["grad_norm"] == pytest.approx(0, abs=1e-6)
        assert log["teacher/agreement"] == 1


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("lora", [None, LoraConfig(r=4, alpha=8.0, dropout=0.3)])
def test_an_interrupted_student_ends_with_the_same_bits(
    lora: LoraConfig | None, teacher: Path, tmp_path: Path
) -> None:
    student = model_folder(tmp_path / "student", llama)
    config = replace(CONFIG, dtype=Dtype.float32, lora=lora, epochs=2, eval_every_steps=2)
    half = TeacherConfig(top_k=8)
    known, other = (
        taught(teacher, tmp_path / name, half, records)
        for name, records in (("known", RECORDS), ("other", HELD_OUT))
    )

    def train(work: Path, stop_at: int | None = None) -> dict[str, bytes]:
        def on_progress(done: float, total: float | None, metrics: Any) -> None:
            if done == stop_at:
                raise Interrupted

        place = Workplace(work / "out", work / "scratch", on_progress)
        arguments = (student, RECORDS, config, place, ForwardKl(), known, (HELD_OUT, other))
        run_distilled(*arguments)
        return folder_bytes(work / "out")

    whole = train(tmp_path / "whole")
    for stop_at in (1, 4):
        with pytest.raises(Interrupted):
            train(tmp_path / f"{stop_at}", stop_at)
        assert train(tmp_path / f"{stop_at}") == whole
    log = log_of(tmp_path / "whole/out")
    assert [bool(line.get("eval_loss/divergence")) for line in log] == [False, True] * 3
    assert log[-1]["eval_loss"] < log[1]["eval_loss"]


def over_ranks(student: Path, known: Path, work: Path) -> None:
    with together() as ranks:
        place = Workplace(work / "out", work / "scratch", ranks=ranks)
        run_distilled(student, RECORDS, CONFIG, place, ForwardKl(), known)


@pytest.mark.slow
def test_ranks_train_as_one_process(teacher: Path, tmp_path: Path) -> None:
    student = model_folder(tmp_path / "student", llama)
    known = taught(teacher, tmp_path / "known", replace(WHOLE, top_k=8), RECORDS)
    assert run_ranks(over_ranks, student, known, tmp_path / "two") == [0, 0]
    place = Workplace(tmp_path / "one/out", tmp_path / "one/scratch")
    run_distilled(student, RECORDS, CONFIG, place, ForwardKl(), known)
    for one, two in zip(log_of(tmp_path / "one/out"), log_of(tmp_path / "two/out"), strict=True):
        assert two == pytest.approx(one, abs=1e-6)


def test_what_does_not_fit_is_one_sentence(teacher: Path, tmp_path: Path) -> None:
    student = model_folder(tmp_path / "student", llama)
    known = taught(teacher, tmp_path / "known", WHOLE, RECORDS)
    other = taught(teacher, tmp_path / "other", replace(WHOLE, top_k=8), HELD_OUT)
    place = Workplace(tmp_path / "out", tmp_path / "scratch")
    loss = ForwardKl()
    with pytest.raises(ValueError, match="loss forward_kl reads a teacher's distribution, so it"):
        run_distilled(
            student, RECORDS, replace(CONFIG, backend=FunctionalTraining()), place, loss, known
        )
    with pytest.raises(ValueError, match=r"keep \(8, 64\) and \(64, 64\) of their tokens"):
        run_distilled(student, RECORDS, CONFIG, place, loss, known, (HELD_OUT, other))
    with pytest.raises(ValueError, match="has no row 'data:0'"):
        run_distilled(student, HELD_OUT, CONFIG, place, loss, known)

    rows, model = (Artifact(folder, "", "") for folder in (tmp_path, student))
    teacher_of_rows: Any = Artifact(known, "", "")
    out: Any = Folder(tmp_path / "step")
    with pytest.raises(TemperError, match="the loss sft needs no teacher; leave teacher out"):
        train_sft.function(out, rows, model, teacher=teacher_of_rows)
    with pytest.raises(TemperError, match="teacher is missing for the loss forward_kl; compute it"):
        train_sft.function(out, rows, model, loss=loss)
    with pytest.raises(TemperError, match="held_out_teacher, or held_out, is missing"):
        train_sft.function(out, rows, model, held_out=rows, loss=loss, teacher=teacher_of_rows)
