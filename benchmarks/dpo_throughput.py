"""The cost of DPO or of distillation: Temper compared with TRL, on the same rows, in one session.

    python benchmarks/dpo_throughput.py --trl PYTHON                        minutes
    python benchmarks/dpo_throughput.py --trl PYTHON --model smollm2        an hour
    python benchmarks/dpo_throughput.py --trl PYTHON --pairs 8 --rounds 1   does it work?
    python benchmarks/dpo_throughput.py --trl PYTHON --only second
    python benchmarks/dpo_throughput.py --trl PYTHON --teacher teacher      distillation, not DPO

PYTHON is an interpreter that can import trl, which is not a dependency of Temper. Every sample is a
separate process with one thread; CPU seconds are the most stable unit on a shared machine.

All contenders get the same model, the same token ids in the same order (this is checked), float32
(with `--device cuda` bfloat16, with float32 weights behind it; Temper with compiled layers, too), a
constant learning rate and AdamW, and should reach the same losses (these are printed). There are
two experiments:

    cost     reference logps and training: CPU seconds, memory, floating-point operations.
    second   the experiment, and then the same with another learning rate: whole processes, from the
             command to the saved model, with all caches of a contender. The first of the two is the
             total cost of an experiment, including imports and Temper's planning.

With `--teacher`, a student learns a teacher's distribution at the chosen responses: by forward KL,
and the second time by reverse KL with another learning rate. Temper's teacher keeps 64 tokens.
TRL's `GKDTrainer` reads its teacher at every step (`DistillationTrainer` takes no given responses).
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.measuring import side, table
from benchmarks.pairs_and_models import NAMED, Model, Workload, make_workload, model_at

HERE = Path(__file__).parent
SECTIONS = ("cost", "second")
TEMPER, COMPILED = "Temper", "Temper, compiled"
TRL = {"TRL, default": "default", "TRL, strongest": "strongest"}
"""The contenders that are TRL, and their settings."""
RATE = 1e-5
SECOND = {"learning_rate": 2e-5, "is_second": True}

Sample = dict[str, Any]
"""The measurements of one process, and its own report."""


@dataclass(frozen=True)
class Bench:
    """The settings that all samples share."""

    workload: Workload
    model: Model
    batch_size: int
    trl: str | None
    folder: Path
    device: str = "cpu"
    teacher: Path | None = None
    fresh: Iterable[int] = field(default_factory=lambda: iter(range(10**6)))

    @property
    def contenders(self) -> list[str]:
        compiled = [] if self.device == "cpu" else [COMPILED]
        return [*(TRL if self.trl else ()), *compiled, TEMPER]

    def job(self, **settings: Any) -> dict[str, Any]:
        output = self.folder / f"sample-{next(iter(self.fresh))}"
        return {
            "model": str(self.model.folder),
            "device": self.device,
            "batch_size": self.batch_size,
            "steps": self.workload.pairs // self.batch_size,
            "learning_rate": RATE,
            "beta": 0.1,
            "teacher": self.teacher and str(self.teacher),
            "is_second": False,
            "flops": False,
            "is_compiled": False,
            "output": str(output),
            **settings,
        }

    def trl_sample(self, setting: str, **settings: Any) -> Sample:
        cache = settings.pop("cache", None) or str(self.folder / f"cache-{next(iter(self.fresh))}")
        rows, tokens = str(self.workload.rows), str(self.workload.ids)
        job = self.job(setting=setting, rows=rows, tokens=tokens, cache=cache, **settings)
        assert self.trl is not None
        return self._call([self.trl, str(HERE / "dpo_trl.py")], job)

    def temper_sample(self, stage: str, **settings: Any) -> Sample:
        job = self.job(tokens=str(self.workload.tokens), **settings)
        return self._call([sys.executable, str(HERE / "dpo_temper.py"), stage], job)

    def _call(self, command: list[str], job: Mapping[str, Any]) -> Sample:
        used, report = side(command, job, Path(job["output"]))
        return used | report


# --- cost ----------------------------------------------------------------------------------------


def cost_sample(bench: Bench, contender: str, flops: bool = False) -> Sample:
    """A reference and a training with it, as seconds by purpose."""
    if contender in TRL:
        sample = bench.trl_sample(TRL[contender], flops=flops)
        reference = sample["phases"].get("reference", {"wall": 0.0, "cpu": 0.0})
        return sample | {"reference": reference, "train": sample["phases"]["train"]}
    output = bench.job()["output"]
    first = bench.temper_sample("reference", flops=flops, output=output)
    is_compiled = contender == COMPILED
    second = bench.temper_sample("train", flops=flops, output=output, is_compiled=is_compiled)
    return {
        "wall": first["wall"] + second["wall"],
        "cpu": first["cpu"] + second["cpu"],
        "peak": max(first["peak"], second["peak"]),
        "reference": first["phases"]["reference"],
        "train": second["phases"]["train"],
        "marks": second["marks"],
        "log": second["log"],
        "flops": first["flops"] + second["flops"],
    }


COST: dict[str, Callable[[Sample], float]] = {
    "reference + training, CPU s": lambda s: s["reference"]["cpu"] + s["train"]["cpu"],
    "a step of training, CPU s": lambda s: _a_step(s, "cpu"),
    "a step of training, wall s": lambda s: _a_step(s, "wall"),
    "reference + training, wall s": lambda s: s["reference"]["wall"] + s["train"]["wall"],
    "peak memory, MiB": lambda s: s["peak"],
}


def _a_step(sample: Sample, of: str) -> float:
    """The mean time of a step, without the first, which includes one-time work."""
    marks = [mark[of] for mark in sample["marks"]]
    return (marks[-1] - marks[0]) / (len(marks) - 1)


def show_cost(console: Console, bench: Bench, rounds: list[dict[str, Sample]]) -> None:
    costs = table("cost: median, and ratio to Temper", "", *bench.contenders)
    for name, value in COST.items():
        costs.add_row(name, *(_cell(rounds, contender, value) for contender in bench.contenders))
    console.print(costs)
    workload = bench.workload
    for contender in bench.contenders:
        seconds = median(COST["reference + training, CPU s"](r[contender]) for r in rounds)
        console.print(
            f"{contender}: {workload.pairs / seconds:.3f} pairs and "
            f"{workload.distinct_tokens / seconds:.0f} distinct tokens a CPU second"
        )
    for contender in bench.contenders[:-1]:
        apart = max(
            abs(theirs["loss"] - ours["loss"])
            for r in rounds
            for theirs, ours in zip(r[contender]["log"], r[TEMPER]["log"], strict=True)
        )
        console.print(f"{contender}: losses of a step differ from Temper's by at most {apart:.1e}")


def show_flops(console: Console, bench: Bench, counted: Mapping[str, int]) -> None:
    floor = bench.model.floor(bench.workload)
    console.print(f"floor: {floor:.3e} floating-point operations for these pairs")
    for contender, flops in counted.items():
        console.print(f"{contender}: {flops:.3e}, {flops / floor:.2f} times the floor")


def _cell(rounds: list[dict[str, Sample]], contender: str, value: Callable[[Sample], float]) -> str:
    middle = median(value(r[contender]) for r in rounds)
    ratio = median(value(r[contender]) / value(r[TEMPER]) for r in rounds)
    return f"{middle:,.1f}" if contender == TEMPER else f"{middle:,.1f} ({ratio:.2f}×)"


# --- second --------------------------------------------------------------------------------------


def second_samples(bench: Bench, contender: str) -> dict[str, Sample]:
    """The experiment, and the same with another learning rate, starting with empty caches."""
    new = bench.job()["output"]
    if contender in TRL:
        setting, cache = TRL[contender], f"{new}-cache"
        first = bench.trl_sample(setting, cache=cache)
        second = bench.trl_sample(setting, cache=cache, **SECOND)
        return {"first": first, "second": second}
    store = f"{new}-store"
    bench.temper_sample("run", store=store, prepare=True)  # model and tokens, as TRL has its rows
    settings = {"store": store, "prepare": False, "is_compiled": contender == COMPILED}
    first = bench.temper_sample("run", **settings)
    second = bench.temper_sample("run", **settings, **SECOND)
    return {"first": first, "second": second}


def show_second(console: Console, bench: Bench, rounds: list[dict[str, dict[str, Sample]]]) -> None:
    whole = table("whole processes: median seconds, and ratio to Temper", "", *bench.contenders)
    for run in ("first", "second"):
        for of in ("wall", "cpu"):
            samples = [{name: r[name][run] for name in bench.contenders} for r in rounds]
            cells = (_cell(samples, name, lambda s, of=of: s[of]) for name in bench.contenders)
            whole.add_row(f"{run} run, {of}", *cells)
    console.print(whole)


# --- all of it -----------------------------------------------------------------------------------


def main(
    trl: Annotated[str | None, typer.Option(help="An interpreter that can import trl.")] = None,
    model: Annotated[str, typer.Option(help=f"{', '.join(NAMED)}, or a folder.")] = "llama",
    smollm2: Annotated[Path | None, typer.Option(help="SmolLM2, imported already.")] = None,
    teacher: Annotated[str | None, typer.Option(help="As --model: distillation from it.")] = None,
    rows: Annotated[Path | None, typer.Option(help="Pairs in UltraFeedback's columns.")] = None,
    pairs: Annotated[int, typer.Option(help="A multiple of the batch size.")] = 32,
    batch_size: Annotated[int, typer.Option(min=1)] = 8,
    longest: Annotated[int, typer.Option(help="Pairs with longer sequences are left out.")] = 1024,
    rounds: Annotated[int, typer.Option(help="Turns that each contender takes.", min=1)] = 3,
    device: Annotated[str, typer.Option(help="cpu, or cuda: bfloat16, 16,384 tokens.")] = "cpu",
    only: Annotated[str | None, typer.Option(help=f"One of: {', '.join(SECTIONS)}.")] = None,
    flops: Annotated[bool, typer.Option(help="Also count operations, in further samples.")] = True,
    folder: Annotated[Path | None, typer.Option(help="Where everything is written.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="All samples.")] = None,
) -> None:
    """Measure what a DPO run costs, in Temper and in TRL."""
    if only not in (None, *SECTIONS):
        raise typer.BadParameter(f"--only {only}; one of: {', '.join(SECTIONS)}")
    if pairs % batch_size or pairs < 2 * batch_size:
        raise typer.BadParameter("--pairs must be a multiple of --batch-size, and two at least")
    console, samples = Console(width=120), {}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="temper-bench-", dir=folder) as temporary:
        place = Path(temporary)
        at = model_at(model, smollm2, place, rows)
        workload = make_workload(rows, at.folder, pairs, batch_size, longest, place)
        console.print(f"{at}\n{workload}")
        named = smollm2 or place / "smollm2"
        taught = teacher and model_at(teacher, named, place, rows).folder
        bench = Bench(workload, at, batch_size, trl, place, device, taught or None)
        if only in (None, "cost"):
            cost = [{c: cost_sample(bench, c) for c in bench.contenders} for _ in range(rounds)]
            show_cost(console, bench, cost)
            samples["cost"] = cost
        if only in (None, "cost") and flops:
            counted = {c: cost_sample(bench, c, flops=True)["flops"] for c in bench.contenders}
            show_flops(console, bench, counted)
            samples["flops"] = counted
        if only in (None, "second"):
            second = [
                {c: second_samples(bench, c) for c in bench.contenders} for _ in range(rounds)
            ]
            show_second(console, bench, second)
            samples["second"] = second
    if json_file is not None:
        json_file.write_text(json.dumps(samples, indent=1))


if __name__ == "__main__":
    typer.run(main)
