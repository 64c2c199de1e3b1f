"""What the documentation tells people to type: Python that compiles, commands that plan.

All commands are planned in this process, one after the other, and the Python of how-tos builds its
steps in it; training is left to the tests of the recipes and examples.
"""

import builtins
import contextlib
import importlib
import json
import re
import shlex
import symtable
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import script, temper
from places import REPOSITORY, model_for_plans

from pipeline.running.session import PLAN_ONLY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
RECIPE = re.compile(r"^```yaml\n(recipe:.*?)^```.*?temper run (\w+[.]yaml)", re.M | re.S)
"""The file of a recipe, and its name in the command below it."""
PLANS = re.compile(r"temper run |python experiments/")
ELSEWHERE = re.compile(r"…|gs://|scheduler=|launcher=|/shared/|tune |python -m|--help")
"""What stands for something else, or needs a machine or a server that tests do not have."""
FILES = {
    "pairs.jsonl": {"prompt": "{}?", "chosen": "Yes.", "rejected": "No, and no again."},
    "held_out.jsonl": {"prompt": "{}!", "chosen": "Yes.", "rejected": "No, and no again."},
    "thumbs.jsonl": {"prompt": "{}?", "completion": "Yes.", "label": True},
    "chats.jsonl": {"messages": [{"role": "user", "content": "{}?"}]},
    "problems.jsonl": {"prompt": "{}?", "answer": "1"},
}


def blocks(*languages: str) -> list[tuple[str, str]]:
    return [
        (page.name, textwrap.dedent(text))
        for page in PAGES
        for language, text in BLOCK.findall(page.read_text("utf-8"))
        if language in languages
    ]


def commands() -> dict[tuple[str, ...], str]:
    """The commands that plan something, as a shell splits them, with the error that the
    documentation shows for them."""
    found: dict[tuple[str, ...], str] = {}
    for _, text in blocks("sh", ""):
        lines = [*text.replace("\\\n", " ").splitlines(), ""]
        for line, after in pairwise(lines):
            line = re.split(r"\s# ", line.removeprefix("$ "))[0].strip()
            if PLANS.match(line) and not ELSEWHERE.search(line):
                found[tuple(shlex.split(line))] = after if after.startswith("error: ") else ""
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the documentation names."""
    for name, row in FILES.items():
        rows = (json.dumps(row).replace("{}", f"Question {n}") for n in range(20))
        (tmp_path / name).write_text("".join(f"{row}\n" for row in rows))
    for name in ("MODEL", "STUDENT", "TEACHER"):
        model_for_plans(tmp_path / name)
    (tmp_path / "experiments").symlink_to(REPOSITORY / "experiments")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "pairs.jsonl").symlink_to(tmp_path / "held_out.jsonl")
    for page in PAGES:
        for text, name in RECIPE.findall(page.read_text("utf-8")):
            (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLAN_ONLY, "1")
    return tmp_path


@pytest.mark.parametrize(("page", "text"), blocks("python"), ids=lambda value: value[:20])
def test_python_compiles(page: str, text: str) -> None:
    compile(text, page, "exec")


_RARE = re.compile(r"gguf_q8_0|raft|backend=jax|nf4|mix\.yaml|preference_losses")
"""Settings that few other tests plan."""


@pytest.mark.parametrize("rare", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("folder", "code_stays")
def test_every_command_plans_or_fails_as_the_documentation_says(rare: bool) -> None:
    wrong = []
    for (program, *words), error in commands().items():
        if bool(_RARE.search(" ".join(words))) is not rare:
            continue
        asked = [word for word in words if word != "--plan"]
        said = temper(*asked, "--plan") if program == "temper" else script(*asked, "--plan")
        told = said.err.strip() == error if error else " to run, " in said.out
        if not told:
            wrong.append((program, *words, said.err))
    assert wrong == []


@pytest.mark.parametrize(
    ("page", "text"),
    [found for found in blocks("yaml") if "launcher:" in found[1]],
    ids=lambda value: value[:12],
)
def test_a_file_of_a_launcher_s_settings_is_one_that_a_script_beside_it_can_choose(
    page: str, text: str, folder: Path
) -> None:
    temper("recipes", "copy", "dpo", "my.py")
    (folder / "conf" / "launcher").mkdir()
    (folder / "conf" / "launcher" / "ours.yaml").write_text(text)
    said = script("my.py", "launcher=ours", "--cfg", "job")
    assert (said.status, said.err) == (0, ""), page
    for line in ("train_dpo", "working_dir: .", "account: ours"):
        assert (line in text) <= (line in said.out)


def names_that_are_missing(text: str) -> set[str]:
    """The names that a snippet uses and neither binds nor imports."""
    waiting = [top := symtable.symtable(text, "snippet", "exec")]
    used: set[str] = set()
    while waiting:
        scope = waiting.pop()
        symbols = [s for s in scope.get_symbols() if scope is top or s.is_global()]
        used |= {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
        waiting += scope.get_children()
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned()}
    imported = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_imported()}
    return used - bound - imported - set(dir(builtins)) - {"__name__"}


def test_every_snippet_that_is_whole_builds_its_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    whole = [
        (page, text)
        for page, text in blocks("python")
        if not names_that_are_missing(text) and page != "tutorial.md"  # that uses a trained model
    ]
    for number, (page, text) in enumerate(whole):
        name = f"snippet_{number}_{page.removesuffix('.md').lower()}"
        (folder / f"{name}.py").write_text(text)
        with contextlib.suppress(SystemExit):  # of a run() that plans
            importlib.import_module(name)
    assert {"own_step.md", "python.md"} <= {page for page, _ in whole}
