"""Runs all cases with all contenders, and writes the page.

    python -m benchmarks.what_changed [CONTENDER ...] [--environments FOLDER]

Each contender has an environment of its own in FOLDER, which is made where it is missing. What is
right is computed, not judged: every edited project also runs without any tool.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.what_changed.cases import CASES, Case
from benchmarks.what_changed.contenders import CONTENDERS, Contender
from benchmarks.what_changed.page import write_page

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
INPUTS = {
    "load": (),
    "tokenize": ("load",),
    "train": ("tokenize",),
    "evaluate": ("train", "tokenize"),
}
STEPS = tuple(INPUTS)


@dataclass(frozen=True)
class Truth:
    """What an edited project computes without a tool: the content of each step's output."""

    outputs: Mapping[str, str]

    def changed(self, before: "Truth") -> set[str]:
        """The steps with another output, or with another input."""
        new = {step for step in STEPS if self.outputs[step] != before.outputs[step]}
        return new | {step for step, inputs in INPUTS.items() if new & {*inputs}}


@dataclass(frozen=True)
class Outcome:
    """
    Attributes:
        ran: the steps that ran after the edit.
        needless: those of them whose output was known already.
        is_stale: whether the result is not that of the edited project.
        failed: the last line of an error; empty if there was none.
    """

    case: str
    ran: Sequence[str]
    needless: Sequence[str]
    is_stale: bool
    failed: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("contenders", nargs="*", help="names; all if there is none")
    parser.add_argument("--environments", type=Path, default=Path("build/what_changed"))
    parser.add_argument("--only", help="cases whose name contains this")
    asked = parser.parse_args()
    cases = [case for case in CASES if not asked.only or asked.only in case.name]
    chosen = [c for c in CONTENDERS if not asked.contenders or c.name in asked.contenders]
    with tempfile.TemporaryDirectory(prefix="what-changed-") as folder:
        truths = _truths(Path(folder), cases)
        for contender in chosen:
            python = _environment(contender, asked.environments.resolve())
            outcomes = _compete(contender, python, Path(folder), cases, truths)
            if not asked.only:
                _keep(contender.name, _version(contender, python), outcomes)
    if not asked.only:
        write_page(HERE, json.loads(RESULTS.read_text()))


def _keep(name: str, version: str, outcomes: Sequence[Outcome]) -> None:
    """Put a contender's outcomes in the place of its last ones."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[name] = {"version": version, "outcomes": [asdict(outcome) for outcome in outcomes]}
    ordered = {c.name: known[c.name] for c in CONTENDERS if c.name in known}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")


def _truths(folder: Path, cases: Sequence[Case]) -> dict[str, Truth]:
    """What the project computes as it is (by the empty name), and after each edit."""
    plain = folder / "plain"
    truths = {"": _truth(plain, None)}
    for case in cases:
        truths[case.name] = truths[""] if case.back else _truth(plain, case)
    return truths


def _truth(project: Path, case: Case | None) -> Truth:
    _fresh(project)
    if case:
        case.edit(project)
    environment = _variables(case) | {"WHAT_RAN": os.devnull, "PYTHONDONTWRITEBYTECODE": "1"}
    for step in STEPS:
        subprocess.run(
            [sys.executable, "-m", "lab.stage", step], cwd=project, check=True, env=environment
        )
    return Truth({step: (project / "work" / f"{step}.json").read_text() for step in STEPS})


def _fresh(project: Path) -> None:
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(HERE / "project", project, ignore=shutil.ignore_patterns("__pycache__"))


def _variables(case: Case | None) -> dict[str, str]:
    return {**os.environ, **dict(case.variables if case else ())}


def _environment(contender: Contender, folder: Path) -> Path:
    """The Python of a contender's own environment."""
    if not contender.package:
        return Path(sys.executable)
    home = folder / contender.package
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", contender.package], check=True)
    return python


def _version(contender: Contender, python: Path) -> str:
    if not contender.package:
        return ""
    ask = f"import importlib.metadata as m; print(m.version({contender.package!r}))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True).stdout.strip()


def _compete(
    contender: Contender,
    python: Path,
    folder: Path,
    cases: Sequence[Case],
    truths: Mapping[str, Truth],
) -> list[Outcome]:
    """Run the project once, and from there each case."""
    project, kept = folder / "project", folder / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    _fresh(project)
    for file in (HERE / "contenders" / contender.folder).iterdir():
        text = file.read_text()
        for old, new in contender.replaced.items():
            text = text.replace(old, new)
        (project / file.name).write_text(text)
    for command in contender.setup:
        _call(command, python, project, {})
    ran, failed = _run(contender, python, project, None)
    assert sorted(ran) == sorted(STEPS), (contender.name, ran, failed)
    assert _score(project) == json.loads(truths[""].outputs["evaluate"]), contender.name
    shutil.copytree(project, kept, symlinks=True)
    outcomes = []
    for case in cases:
        shutil.rmtree(project)
        subprocess.run(["cp", "-a", kept, project], check=True)  # with the times of files
        case.edit(project)
        if case.back:
            _run(contender, python, project, case)
            for file in (
                "settings.json",
                *(str(p.relative_to(kept)) for p in kept.glob("lab/*.py")),
            ):
                if (project / file).read_bytes() != (kept / file).read_bytes():
                    (project / file).write_bytes((kept / file).read_bytes())
        outcome = _judged(case, truths, project, *_run(contender, python, project, case))
        outcomes.append(outcome)
        told = "stale" if outcome.is_stale else "needless" if outcome.needless else "right"
        print(f"{contender.name}: {case.name}: {told} {outcome.failed} {outcome.ran}", flush=True)
    return outcomes


def _judged(
    case: Case,
    truths: Mapping[str, Truth],
    project: Path,
    ran: Sequence[str],
    failed: str,
) -> Outcome:
    truth = truths[case.name]
    needed = truth.changed(truths[""]) | case.may_run
    is_stale = not failed and _score(project) != json.loads(truth.outputs["evaluate"])
    needless = [step for step in STEPS if step in ran and step not in needed]
    return Outcome(case.name, ran, needless, is_stale, failed)


def _score(project: Path) -> object:
    output = json.loads((project / "settings.json").read_text())["output"]
    try:
        return json.loads((project / output / "score.json").read_text())
    except FileNotFoundError:
        return None


def _run(
    contender: Contender, python: Path, project: Path, case: Case | None
) -> tuple[list[str], str]:
    """The steps that ran, and the end of an error."""
    journal = project.parent / "ran"
    journal.write_text("")
    failed = ""
    for command in contender.commands:
        done = _call(command, python, project, dict(case.variables) if case else {})
        failed = failed or done
    return sorted(set(journal.read_text().split())), failed


def _call(command: str, python: Path, project: Path, variables: Mapping[str, str]) -> str:
    environment = {
        **os.environ,
        **variables,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(project),
        "WHAT_RAN": str(project.parent / "ran"),
        "HOME": str(project.parent),
    }
    done = subprocess.run(
        command, shell=True, cwd=project, env=environment, capture_output=True, text=True
    )
    return (done.stderr.strip() or "failed").splitlines()[-1] if done.returncode else ""


if __name__ == "__main__":
    main()
