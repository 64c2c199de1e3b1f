"""A script of somebody's own, whose steps have no versions: code is what they are known by."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import fresh_processes
from toy_steps import journal_lines

TEMPER = Path(sys.executable).with_name("temper")


@dataclass
class Desk:
    """A script of somebody's own, its store, and the shell they work in."""

    folder: Path

    @property
    def script(self) -> Path:
        return self.folder / "project" / "measures.py"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.txt"

    def shell(self, *command: str) -> str:
        """Run a command; what it prints, on any stream, without columns' padding."""
        environment = {**os.environ, "TEMPER_STORE": str(self.folder / "store")}
        return " ".join(fresh_processes.shell(command, self.folder, environment).split())

    def run(self) -> int:
        """Run the script; how many of its steps really ran."""
        before = len(journal_lines(self.journal))
        self.shell(sys.executable, "project/measures.py", self.journal.name)
        return len(journal_lines(self.journal)) - before

    def temper(self, *arguments: str) -> str:
        return self.shell(str(TEMPER), *arguments)

    def edit(self, old: str, new: str) -> None:
        text = self.script.read_text()
        assert text.count(old) == 1
        self.script.write_text(text.replace(old, new))


MEASURES = """
import sys
from dataclasses import dataclass
from pipeline import Output, added_field, run, step

@dataclass(frozen=True)
class Unit:
    name: str = "m"

    def scale(self):
        return 1

@dataclass(frozen=True)
class Square:
    width: int = 2
    unit: object = added_field(Unit(), before=Unit())

    def area(self):
        return self.width * self.width

@dataclass(frozen=True)
class Line:
    width: int = 2

    def area(self):
        return 0

def rounded(value):
    return round(value, 2)

@step
def measure(out: Output, shape: object, journal: str) -> dict:
    with open(journal, "a") as file:
        file.write("measure\\n")
    (out.path / "area.txt").write_text(str(rounded(shape.area())))
    return {"area": shape.area()}

@step(added={"unit": Unit()})
def double(out: Output, journal: str, unit: object = Unit()) -> dict:
    with open(journal, "a") as file:
        file.write("double\\n")
    return {"twice": rounded(2 * 2)}

if __name__ == "__main__":
    journal = sys.argv[1]
    roots = [measure(Square(), journal), measure(Square(3), journal), measure(Line(), journal)]
    run([*roots, double(journal)], "store")
"""
