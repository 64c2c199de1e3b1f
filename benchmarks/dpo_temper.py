"""DPO or distillation by Temper: one side of `dpo_throughput.py`.

    python dpo_temper.py reference JOB.json REPORT.json   the reference's logps, or the teacher's
    python dpo_temper.py train JOB.json REPORT.json       the training against them
    python dpo_temper.py run JOB.json REPORT.json         both as steps of an experiment, except
                                                          cached steps

The first two do the work of a step's process, without Temper's planning and caching.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measuring import Phases, keep_freed_memory


def main(stage: str, job_file: str, report_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    phases = Phases()
    report = run_experiment(job, phases) if stage == "run" else run_stage(stage, job, phases)
    report |= {"phases": phases.seconds, "marks": phases.marks}
    Path(report_file).write_text(json.dumps(report))


def run_stage(stage: str, job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    """Run the reference or the training in this process, with a mark after every step."""
    with phases.phase("import"):
        import torch

        from steps.data.rows.parquet import iter_rows
        from steps.distillation.cached_teacher import run_teacher
        from steps.distillation.distilled import run_distilled
        from steps.models.workplace import Workplace
        from steps.scoring.examples import chosen_as_demonstration
        from steps.scoring.reference import run_reference
        from steps.training.recipes import run_dpo

    torch.set_num_threads(1)
    keep_freed_memory()  # as a step's process does
    counted = count_flops() if job["flops"] else list[int]()
    config, output = _config(job), Path(job["output"])
    reference = output / "reference"
    rows = iter_rows(job["tokens"])
    if job["teacher"]:
        rows = map(chosen_as_demonstration, rows)

    def mark(done: int, total: int, metrics: Mapping[str, float]) -> None:
        phases.mark()

    with phases.phase(stage):
        if stage == "reference":
            of_model = _teaching(job) if job["teacher"] else config.reference()
            settings = replace(of_model, groups_per_shard=job["batch_size"])
            scratch = output / "reference-scratch"
            place = Workplace(reference, scratch, on_progress=mark)
            if job["teacher"]:
                run_teacher(Path(job["teacher"]), rows, settings, place, Path(job["tokens"]))
                return {"flops": sum(counted)}
            run_reference(Path(job["model"]), rows, settings, place)
            return {"flops": sum(counted)}
        place = Workplace(output / "model", output / "scratch", on_progress=mark)
        if job["teacher"]:
            run_distilled(Path(job["model"]), list(rows), config, place, _loss(job), reference)
        else:
            run_dpo(Path(job["model"]), rows, reference, config, place)
    log = (output / "model/metrics.jsonl").read_text().splitlines()
    return {"flops": sum(counted), "log": [json.loads(line) for line in log]}


def run_experiment(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    """Run both as an experiment with a store, which plans, starts workers and commits."""
    with phases.phase("import"):
        from pipeline import adopt, run
        from steps.kinds import Model, PairTokens
        from steps.reference_logprobs import reference_logprobs
        from steps.teacher_logprobs import teacher_logprobs
        from steps.train_dpo import train_dpo
        from steps.train_sft import train_sft

    with phases.phase("run"):
        model, tokens = adopt(job["model"], Model), adopt(job["tokens"], PairTokens)
        given = {"model": model, "tokens": tokens}
        if job["teacher"]:
            given["teacher"] = adopt(job["teacher"], Model)
        if job["prepare"]:
            run(given, job["store"])
            return {}
        config = _config(job)
        if job["teacher"]:
            known = teacher_logprobs(tokens, given["teacher"], _teaching(job))
            trained = train_sft(tokens, model, config, loss=_loss(job), teacher=known)
            run({"student": trained}, job["store"])
            return {}
        reference = reference_logprobs(tokens, model, config.reference())
        run({"dpo": train_dpo(tokens, model, reference, config)}, job["store"])
    return {}


def count_flops() -> list[int]:
    """Count the operations of models from now on, in their own thread; one number per call."""
    from benchmarks.flops import flop_counter
    from steps.scoring.scorer import Scorer
    from steps.training.trainer import Trainer

    counts: list[int] = []

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            with flop_counter() as counter:
                result = method(*arguments)
            counts.append(counter.get_total_flops())
            return result

        return counted

    for kind, name in ((Trainer, "_forward_backward"), (Scorer, "_logps")):
        setattr(kind, name, counting(getattr(kind, name)))
    return counts


def _config(job: dict[str, Any]) -> Any:
    from steps.losses.dpo import Dpo
    from steps.training.config import DpoConfig, OptimizerConfig, Schedule, TrainConfig

    kind, loss = (TrainConfig, {}) if job["teacher"] else (DpoConfig, {"loss": Dpo(job["beta"])})
    return kind(
        batch_size=job["batch_size"],
        optimizer=OptimizerConfig(job["learning_rate"], Schedule.constant),
        **loss,
        checkpoint_every_seconds=None,  # TRL writes none either
        compile_layers=job["is_compiled"],
        **({} if job["device"] == "cpu" else {"dtype": "bfloat16", "tokens_per_forward": 16384}),
    )


def _teaching(job: dict[str, Any]) -> Any:
    from steps.distillation.config import TeacherConfig

    settings: dict[str, Any] = {} if job["device"] == "cpu" else {"dtype": "bfloat16"}
    return TeacherConfig(**settings)


def _loss(job: dict[str, Any]) -> Any:
    from steps.losses.distillation.forward_kl import ForwardKl
    from steps.losses.distillation.reverse_kl import ReverseKl

    return ReverseKl() if job["is_second"] else ForwardKl()


if __name__ == "__main__":
    main(*sys.argv[1:])
