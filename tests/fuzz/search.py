"""A search for edits of random projects that keys get wrong.

Run it by hand for as long as one has patience::

    .venv/bin/python tests/fuzz/search.py [--root CHECKOUT] [--seed N] [--projects N]
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import mutants
import neutral_edits
from laboratory import Files, Laboratory, Verdict
from projects import Project, project
from report import difference


@dataclass(frozen=True)
class Trial:
    """An edit of a project, and what it did. Attributes: change: what kind of edit it is."""

    project: Project
    change: str
    files: Files
    verdict: Verdict
    is_observed: bool

    @property
    def problem(self) -> str:
        if self.verdict.false_hit and not self.is_observed:
            return "unbound name" if self._names_nothing else "FALSE HIT"
        if self.verdict.before.failed or (self.verdict.after.failed and self.verdict.after.result):
            return "crash"
        is_neutral = self.change != "mutant" and not self.project.reads_code
        return "needless rerun" if is_neutral and self.verdict.needless else ""

    @property
    def _names_nothing(self) -> bool:
        """Whether the edit leaves code that reads a name before anything binds it, such as an
        import that is moved below its use. It has no result, and none is taken for another."""
        return self.verdict.after.raised.startswith(("NameError", "UnboundLocalError"))

    def __str__(self) -> str:
        lines = [f"{self.problem}: {self.change} of {', '.join(self.project.names)}"]
        lines += difference(self.project.files, self.files)
        before, after = self.verdict.before, self.verdict.after
        lines += [f"    result {before.result} -> {after.result or after.raised}"]
        lines += [f"    units that differ: {self.verdict.units}", before.trouble, after.trouble]
        return "\n".join(filter(None, lines))


def trials(laboratory: Laboratory, seed: int, projects: int, edits: int) -> Iterator[Trial]:
    """The same edits for the same seed; half of them mutants, half neutral."""
    for number in range(projects):
        chance = random.Random(f"{seed} {number}")
        made = project(chance)
        if laboratory.observe(made.files).result is None:
            continue
        for count in range(edits):
            change, files = _edit(made.files, chance, is_neutral=bool(count % 2))
            verdict = laboratory.compare(made.files, files)
            seen = verdict.false_hit and laboratory.observed_changes(made.files, files)
            yield Trial(made, change, files, verdict, bool(seen))


def _edit(files: Files, chance: random.Random, is_neutral: bool) -> tuple[str, Files]:
    if is_neutral:
        return neutral_edits.edit(files, chance)
    while True:
        name = chance.choice(sorted(name for name in files if name.endswith(".py")))
        if changed := mutants.mutant(files[name], chance):
            return "mutant", {**files, name: changed}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=str(Path(__file__).parents[2]))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--projects", type=int, default=100)
    parser.add_argument("--edits", type=int, default=10)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with Laboratory(Path(options.root)) as laboratory:
        for trial in trials(laboratory, options.seed, options.projects, options.edits):
            verdict = trial.verdict
            counts["edits"] += 1
            counts["changed"] += verdict.changed
            counts["unchanged"] += verdict.unchanged
            if trial.problem:
                counts[trial.problem] += 1
                counts[f"{trial.problem} by {trial.change}"] += 1
                print(trial, flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
