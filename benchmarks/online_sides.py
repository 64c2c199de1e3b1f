"""Iterations of GRPO by one contender: the samples of `online_throughput.py`.

    python online_sides.py temper|trl JOB.json REPORT.json

The report has, after every iteration, the CPU seconds so far of this process and its children, the
completion tokens of the iteration, and the mean reward. Every contender keeps freed memory, as a
worker of Temper does.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring import keep_freed_memory

Marks = list[dict[str, float]]


def cpu_seconds() -> float:
    """Of this process and of its children that run."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return sum(used.user + used.system for used in times)


def mark(marks: Marks, tokens: float, reward: float) -> None:
    marks.append(
        {"cpu": cpu_seconds(), "wall": time.monotonic(), "tokens": tokens, "reward": reward}
    )


def by_temper(job: dict[str, Any], marks: Marks) -> None:
    """The work of a `train_online` step's process."""
    from steps.checking.config import JudgeConfig
    from steps.checking.pattern import Pattern
    from steps.models.config import ActivationCheckpointing
    from steps.models.workplace import Workplace
    from steps.online.config import RlConfig
    from steps.online.methods.policy_gradient import Advantage, Over, PolicyGradient
    from steps.online.online_run import Folders, run_sampling
    from steps.online.rewarding.rewards import checking
    from steps.training.config import OptimizerConfig, Schedule

    method = PolicyGradient(advantage=Advantage.group_std, over=Over.response)
    config = RlConfig(
        method=method,
        prompts=job["prompts"],
        completions=job["completions"],
        max_new_tokens=job["tokens"],
        slots=job["prompts"] * job["completions"],
        tokens_per_forward=job["tokens_per_forward"],
        activation_checkpointing=ActivationCheckpointing.none,
        optimizer=OptimizerConfig(job["learning_rate"], schedule=Schedule.constant),
        checkpoint_every_seconds=None,
    )
    completions = job["prompts"] * job["completions"]

    def on_progress(done: int, total: int, metrics: Any) -> None:
        mark(marks, metrics["completions/mean_length"] * completions, metrics["reward"])

    output = Path(job["output"])
    place = Workplace(output / "out", output / "scratch", on_progress)
    with checking(Pattern(job["pattern"]), JudgeConfig(), output) as reward:
        folders, prompts = Folders(Path(job["model"])), Path(job["rows"])
        run_sampling(folders, config, prompts, reward, job["iterations"], place)


def by_trl(job: dict[str, Any], marks: Marks) -> None:
    """TRL as documented, with its defaults but for what the job says."""
    import re

    from datasets import load_dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    drawn: list[tuple[int, float]] = []

    def matches(completions: Any, completion_ids: list[list[int]], **_: Any) -> list[float]:
        found = [float(bool(re.search(job["pattern"], c[0]["content"]))) for c in completions]
        drawn.append((sum(map(len, completion_ids)), sum(found) / len(found)))
        return found

    class AtEnd(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            mark(marks, *drawn[-1])

    size = job["prompts"] * job["completions"]
    config = GRPOConfig(
        output_dir=job["output"],
        per_device_train_batch_size=job["rows_per_forward"] or size,
        gradient_accumulation_steps=size // (job["rows_per_forward"] or size),
        num_generations=job["completions"],
        max_completion_length=job["tokens"],
        max_steps=job["iterations"],
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        loss_type="grpo",
        beta=0.0,
        bf16=False,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        **job["settings"],
    )
    prompts = load_dataset("json", data_files=job["prompts_json"], split="train")
    trainer = GRPOTrainer(
        model=job["model"],
        reward_funcs=matches,
        args=config,
        train_dataset=prompts,
        callbacks=[AtEnd()],
    )
    trainer.train()


def main(contender: str, job_file: str, report_file: str) -> None:
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()
    marks: Marks = []
    job = json.loads(Path(job_file).read_text())
    {"temper": by_temper, "trl": by_trl}[contender](job, marks)
    Path(report_file).write_text(json.dumps(marks))


if __name__ == "__main__":
    main(*sys.argv[1:])
