"""Steps that are defined in the cells of a notebook, in a real session of IPython."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drivers import Driver

pytest.importorskip("IPython")

SESSION = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell, shown = InteractiveShell.instance(), []
for cell in json.loads(sys.argv[1]):
    with capture_output():
        done = shell.run_cell(cell, store_history=True)
    error = done.error_before_exec or done.error_in_exec
    shown.append(f"{type(error).__name__}: {error}" if error else done.result)
print(json.dumps(shown))
"""

SETTINGS = """
from pipeline import Artifact, Metrics, Output, run, step
import json, re
from dataclasses import dataclass
LIMIT, NOTHING = 3, None
VOWELS = {'a', 'e', 'i', 'o', 'u'}
table = [object()]

@dataclass(frozen=True)
class Shouting:
    times: int = 2

class Words(Artifact):
    "``words.json``"

def made(it):
    done = run({"it": it}, store="store")["it"]
    return [dict(done.metrics), done.manifest.attempt]
"""
HELPER = """
def shout(text):  # a helper
    return re.sub("a", "A" if "a" in VOWELS else "", text) * (LIMIT or NOTHING)
"""
STEPS = """
%time first = 1
@step(makes=Words)
def words(out: Output, text: str, config: Shouting = Shouting()) -> Metrics:
    table = [shout(text)] * config.times
    (out.path / "words.json").write_text(json.dumps(table))
    return {"all": "".join(table)}

@step
def count(out: Output, words: Words) -> Metrics:
    return {"length": len((words / "words.json").read_text()), "note": open("note.txt").read()}
"""


class Session:
    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {**os.environ, "IPYTHONDIR": str(folder / "ipython")}
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))

    def __call__(self, *cells: str) -> list[Any]:
        """What each cell shows, in a process that is forked."""
        words = ["-c", SESSION, json.dumps(cells)]
        driver = Driver(words, self.folder, self.environment)
        printed = driver.communicate()
        assert driver.returncode == 0, printed
        return json.loads(printed.splitlines()[-1])

    def from_a_shell(self, *cells: str) -> list[Any]:
        """The same with interpreters of their own."""
        done = subprocess.run(
            [sys.executable, "-c", SESSION, json.dumps(cells)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


@pytest.mark.slow
def test_steps_of_cells_run_and_every_edit_of_a_cell_counts(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("1")
    banana, counted = "made(words('banana'))", "made(count(words('banana')))"
    _, _, _, first, _, again, _, shorter, _, back, one, _, two = session(
        SETTINGS, HELPER, STEPS, banana,
        HELPER.replace("# a helper", "# said anew"), banana,
        "LIMIT = 1", banana,
        "LIMIT = 3", banana,
        counted, "open('note.txt', 'w').write('2')", counted,
    )  # fmt: skip
    assert first[0] == {"all": "bAnAnA" * 6}
    assert again == first, "a comment is no code"
    assert shorter[0] == {"all": "bAnAnA" * 2}, "a constant is"
    assert back == first
    assert (one[0]["note"], two[0]["note"]) == ("1", "2"), "so is a file that was read"


@pytest.mark.slow
def test_another_session_finds_what_was_made(session: Session) -> None:
    cells = (SETTINGS, HELPER, STEPS, "made(words('banana'))")
    first = session.from_a_shell(*cells)[-1]
    assert first == session("import os", *reversed(cells[:2]), *cells[2:])[-1]


def test_what_a_worker_could_not_have_is_refused_in_a_sentence(session: Session) -> None:
    *_, newer, _, stale, loaded = session(
        SETTINGS, HELPER, STEPS, "made_before = words('x', Shouting(3))",
        f"raise ValueError\n{SETTINGS.replace('= 2', '= 4')}", "run([made_before], store='store')",
        SETTINGS, "run([made_before], store='store')",
        "@step\ndef uses(out: Output) -> Metrics:\n    return {'rows': len(table)}\nuses()",
    )  # fmt: skip
    assert newer.startswith(
        "TemperError: no cell of this notebook has the present source of Shouting"
    )
    assert stale.startswith("TemperError: a later cell defines Shouting again; run the cells")
    assert "table, which uses uses, is a value of type list that only this notebook has" in loaded
    assert "pass it to the step as an argument" in loaded
