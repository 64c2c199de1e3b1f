"""A search for edits of random projects after which a result is served that is another now.

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
from laboratory import Laboratory, Verdict
from projects import Project, project
from report import difference


@dataclass(frozen=True)
class Trial:
    """An edit of a project, and what it did. Attributes: change: what kind of edit it is."""

    project: Project
    change: str
    verdict: Verdict

    @property
    def problem(self) -> str:
        if self.verdict.is_crash:
            return "crash"
        return "FALSE HIT" if self.verdict.hit and self.verdict.changed else ""

    def __str__(self) -> str:
        before, after = self.verdict.before, self.verdict.after
        lines = [f"{self.problem}: {self.change} of {', '.join(self.project.names)}"]
        return "\n".join([*lines, *difference(before, after), str(self.verdict)])


def trials(laboratory: Laboratory, seed: int, projects: int, edits: int) -> Iterator[Trial]:
    """The same edits for the same seed."""
    for number in range(projects):
        chance = random.Random(f"{seed} {number}")
        made = project(chance)
        if laboratory.result(made.files) is None:
            continue
        for _ in range(edits):
            change, files = mutants.edit(made.files, chance)
            yield Trial(made, change, laboratory.compare(made.files, files))


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
            counts["changed" if verdict.changed else "unchanged"] += 1
            counts["needless rerun"] += not verdict.hit and not verdict.changed
            if trial.problem:
                counts[trial.problem] += 1
                counts[f"{trial.problem} by {trial.change}"] += 1
                print(trial, flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
