"""DPO or distillation by TRL: one side of `dpo_throughput.py`, run by an interpreter that has trl.

    python dpo_trl.py JOB.json REPORT.json

TRL is used as documented, on conversations, with its own tokenisation and its defaults except for
the job's settings. Rows are in the order of training. The script checks that TRL made exactly the
job's token ids.
"""

import json
import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measuring import Phases, keep_freed_memory

PREFERENCE = ("prompt", "chosen", "rejected")
SETTINGS: dict[str, dict[str, Any]] = {
    # TRL's defaults: a live reference, activations recomputed, all pairs of a step in one forward.
    "default": {},
    # TRL's fastest settings: no activation is recomputed, and no pair is padded to another one.
    # The filter by length captures all settings; without it TRL can reuse cached reference logps.
    "strongest": {
        "max_length": None,
        "gradient_checkpointing": False,
        "precompute_ref_log_probs": True,
        "precompute_ref_batch_size": 1,
        "per_device_train_batch_size": 1,
    },
}


def main(job_file: str, report_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    phases = Phases()
    with phases.phase("import"):
        import torch
        from datasets import load_dataset
        from transformers import AutoTokenizer, TrainerCallback
        from trl import DPOConfig, DPOTrainer  # pyright: ignore[reportMissingImports]

        gkd: Any = import_module("trl.experimental.gkd") if job["teacher"] else None
        from benchmarks.flops import flop_counter

    class Marks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            phases.mark()

    class Trainer(DPOTrainer):
        """Measures the time of the reference; nothing else is changed."""

        def _precompute_ref_logps(self, *arguments: Any) -> Any:
            with phases.phase("reference"):
                return super()._precompute_ref_logps(*arguments)

    torch.set_num_threads(1)
    keep_freed_memory()  # as the other side does
    config = None if job["teacher"] else DPOConfig(**_arguments(job))
    rows = load_dataset("json", data_files=job["rows"], split="train", cache_dir=job["cache"])
    with flop_counter() if job["flops"] else nullcontext() as counted:
        with phases.phase("construct"):  # loads the model, tokenises, computes the reference
            if job["teacher"]:
                rows = rows.map(
                    lambda row: {"messages": row["prompt"] + row["chosen"]},
                    remove_columns=list(PREFERENCE),
                )
                trainer = gkd.GKDTrainer(
                    model=job["model"],
                    teacher_model=job["teacher"],
                    args=gkd.GKDConfig(**_distillation(job)),
                    processing_class=AutoTokenizer.from_pretrained(job["model"]),
                    train_dataset=rows,
                    callbacks=[Marks()],
                )
            else:
                trainer = Trainer(
                    model=job["model"], args=config, train_dataset=rows, callbacks=[Marks()]
                )
        if not job["teacher"]:
            _require_same_tokens(trainer.train_dataset, Path(job["tokens"]))
        else:
            _require_same_labels(trainer, Path(job["tokens"]))
        with phases.phase("train"):
            trainer.train()
    with phases.phase("save"):
        trainer.save_model()
    report = {
        "phases": phases.seconds,
        "marks": phases.marks,
        "log": [line for line in trainer.state.log_history if "loss" in line],
        "flops": counted.get_total_flops() if counted is not None else None,
    }
    Path(report_file).write_text(json.dumps(report))


def _arguments(job: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `DPOConfig`."""
    on_gpu, settings = job["device"] != "cpu", SETTINGS[job["setting"]]
    if on_gpu:  # where one pair a forward is slow, and Liger's kernels are fast
        liger = {"use_liger_kernel": True} if settings and find_spec("liger_kernel") else {}
        settings = {n: v for n, v in settings.items() if not n.endswith("batch_size")} | liger
    batch_size = settings.get("per_device_train_batch_size", job["batch_size"])
    return {
        "output_dir": job["output"],
        "per_device_train_batch_size": batch_size,
        **settings,
        "gradient_accumulation_steps": job["batch_size"] // batch_size,
        "max_steps": job["steps"],
        "learning_rate": job["learning_rate"],
        "lr_scheduler_type": "constant",
        "beta": job["beta"],
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
    }


def _distillation(job: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `GKDConfig`: given responses only, forward KL or (second) reverse KL."""
    of_dpo = ("precompute_ref_log_probs", "precompute_ref_batch_size", "max_length")
    arguments = {n: v for n, v in _arguments(job).items() if n not in of_dpo}
    return arguments | {"lmbda": 0.0, "temperature": 1.0, "beta": float(job["is_second"])}


def _require_same_labels(trainer: Any, tokens: Path) -> None:
    for row, (prompt, chosen, _) in zip(
        trainer.train_dataset, json.loads(tokens.read_text()), strict=True
    ):
        made = trainer.data_collator([row])
        wanted = ([*prompt, *chosen], [-100] * len(prompt) + chosen)
        if (made["input_ids"][0].tolist(), made["labels"][0].tolist()) != wanted:
            raise SystemExit("TRL makes other tokens or labels of a conversation")


def _require_same_tokens(dataset: Any, tokens: Path) -> None:
    names = [f"{part}_ids" for part in PREFERENCE]
    wanted = json.loads(tokens.read_text())
    made = [[row[name] for name in names] for row in dataset]
    if made != wanted:
        differing = sum(m != w for m, w in zip(made, wanted, strict=False))
        raise SystemExit(
            f"TRL made {len(made)} rows for {len(wanted)}, of which {differing} have other tokens"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
