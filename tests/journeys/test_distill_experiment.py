"""The recipe of distillation: a teacher is run once for several students."""

import json
from pathlib import Path

import pytest
from experiment_desk import Desk

SMALL = ("distill.max_steps=2", "distill.batch_size=2", "scoring.top_k=4")


@pytest.mark.slow
def test_another_loss_and_rate_do_not_run_the_teacher_again(
    tiny_model: Path, repository: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = (
        f"model.path={tiny_model}", "model.package=null", f"teacher.path={tiny_model}",
        "data=mine", f"data.path={tmp_path}/rows.jsonl", "data.test_fraction=0.4",
    )  # fmt: skip
    desk = Desk(repository, "distill", tmp_path, (*own, *SMALL))
    desk.run_here()
    (teacher,) = desk.made("teacher_logprobs")
    assert teacher.metrics["rows"] >= 2
    (student,) = desk.made("train_sft")
    assert student.metrics["final"]["teacher/agreement"] > 0.9  # it is its own teacher
    others = ("loss=reverse_kl", "loss.temperature=2", "distill.optimizer.learning_rate=1e-3")
    for other in others:
        assert desk.plan(other).keys() == {"train_sft"}
    assert {"teacher_logprobs", "train_sft"} <= desk.plan("scoring.top_k=3").keys()
    without = Desk(repository, "distill", tmp_path, own[:2] + own[3:])
    said = without.here("--plan", check=False)
    assert "set teacher.path to a folder, or teacher.hub and teacher.revision" in said.stderr


@pytest.mark.slow
@pytest.mark.parametrize("checked", [(), ("checker=exact", "rl.method.reward_weight=1")])
def test_a_student_learns_at_its_own_answers_with_or_without_a_checker(
    tiny_model: Path, repository: Path, tmp_path: Path, checked: tuple[str, ...]
) -> None:
    rows = [{"prompt": f"What is {n}?", "answer": f"{n}"} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (
        f"model.path={tiny_model}", "model.package=null", f"teacher.path={tiny_model}",
        "data=mine", f"data.path={tmp_path}/rows.jsonl", "data.test_fraction=0.4", "rl.prompts=2",
        "rl.completions=2", "rl.max_new_tokens=4", "answering.max_new_tokens=4", "iterations=2",
        "segment=1",
    )  # fmt: skip
    desk = Desk(repository, "distill_online", tmp_path, (*settings, *checked))
    desk.run_here()
    for run in desk.made("train_online"):
        assert abs(run.metrics["first"]["teacher/reverse_kl"]) < 1e-5  # it is its own teacher
        assert ("reward" in run.metrics["first"]) == bool(checked)
    assert len(desk.made("judge")) == (2 if checked else 0)


@pytest.mark.slow
def test_the_experiment_comes_to_its_end_with_a_round_on_the_students_own_answers(
    repository: Path, tmp_path: Path
) -> None:
    of_each = ("max_steps=40", "batch_size=16", "optimizer.learning_rate=5e-3")
    training = (f"{n}.{each}" for n in ("teaching", "sft", "distill") for each in of_each)
    sizes = (
        "train_problems=20",
        "test_problems=5",
        "iterations=1",
        "rl.prompts=4",
        "rounds=1",
        "online=1",
    )
    desk = Desk(repository, "distill_arithmetic", tmp_path, (*sizes, *training))
    shown = desk.run_here().stdout
    for name in ("teacher", "SFT", "distilled", "after round 1", "SFT, then on-policy"):
        assert name in shown
    assert len(desk.made("teacher_logprobs")) == 2
