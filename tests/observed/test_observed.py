"""What a step turned out to depend on besides its key: seen while it runs, and looked at before its
artifact is used again.

Every test writes a small project with a step in it and runs it with real workers, as often as the
test edits something. ``APP`` in its files is the project's name, which no other test has.
"""

import importlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import textwrap
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from drivers import printed_by
from places import REPOSITORY
from rich.console import Console
from typer.testing import CliRunner

from pipeline import File, Step, Store, look_again, run
from pipeline.cli import app
from pipeline.observed.discovery import Home
from pipeline.observed.path_filter import Rules
from pipeline.plan.planning import PlannedStep, State, make_plan
from pipeline.running.rounds import RunFailed
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.worker.calling import project_roots

pytestmark = pytest.mark.usefixtures("forked_workers")


class Project:
    """A package in a folder of its own, whose module ``steps`` has the step ``look``."""

    def __init__(self, folder: Path, store: Store, name: str = ""):
        self.folder, self.store = folder, store
        self.name = name or f"app_{secrets.token_hex(6)}"
        self.write("__init__.py", "")

    def path(self, file: str) -> Path:
        return self.folder / self.name / file

    def write(self, file: str, text: str) -> None:
        self.path(file).parent.mkdir(parents=True, exist_ok=True)
        text = textwrap.dedent(text).replace("APP", self.name)
        self.path(file).write_text(text, "utf-8")

    def step(self, body: str, before: str = "", decorator: str = "@step") -> None:
        """Write ``look``: ``body`` gives what it returns the value of ``result``."""
        text = textwrap.dedent(
            f"""
            from pathlib import Path
            from pipeline import step, Output
            HERE = Path(__file__).parent
            BEFORE
            {decorator}
            def look(out: Output, name: str = "a") -> dict:
            BODY
                (out.path / "result.txt").write_text(str(result))
                return {{"result": str(result)}}
            """
        )
        inside = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
        text = text.replace("BODY", inside).replace("BEFORE", textwrap.dedent(before))
        self.write("steps.py", text)

    def look(self, name: str = "a") -> Step:
        look_again()
        return importlib.import_module(f"{self.name}.steps").look(name)

    def run(self, name: str = "a", **options: Any) -> str:
        """Run the step; its result."""
        step = self.look(name)
        made = run({"look": step}, self.store, console=Console(quiet=True), **options)
        return made["look"].metrics["result"]

    def planned(self, name: str = "a") -> PlannedStep:
        [planned] = make_plan({"look": self.look(name)}, self.store).steps
        return planned

    def is_cached(self) -> bool:
        return self.planned().state is State.CACHED

    def reason(self) -> str:
        planned = self.planned()
        assert planned.state is State.RUN
        return planned.reason.replace(f"{self.name}.", "").replace(f"{self.name}/", "")

    def manifest(self) -> Manifest:
        return Catalog(self.store).history("look")[-1]

    def discovered(self) -> set[str]:
        """The names of all discovered dependencies, less the project's; those of code only where
        they are of other modules than the step's."""
        found = self.manifest().discovered
        code = {n.partition(":")[0].rpartition("@")[2] for n in found.code} - {
            self.name,
            f"{self.name}.steps",
        }
        names = (*code, *found.files, *found.folders)
        return {n.removeprefix(self.name).lstrip("./") for n in names}


@pytest.fixture
def project(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Project:
    (tmp_path / "code").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    return Project(tmp_path / "code", store)


READ_PROMPT = 'result = (HERE / "prompts" / "system.txt").read_text()'


# --- files ---------------------------------------------------------------------------------------


def test_a_data_file_beside_the_code_is_a_dependency(project: Project) -> None:
    project.write("prompts/system.txt", "be kind")
    project.step(READ_PROMPT)
    assert project.run() == "be kind"
    assert project.is_cached()
    project.write("prompts/system.txt", "be brief")
    assert project.reason() == "prompts/system.txt, which it read, changed"
    assert project.run() == "be brief"
    project.write("prompts/system.txt", "be kind")
    assert project.is_cached(), "the earlier generation depends on what is there again"
    assert project.run() == "be kind"
    project.path("prompts/system.txt").unlink()
    assert project.reason() == "prompts/system.txt, which it read, is gone"


@pytest.mark.parametrize("place", ["code", "data"])
def test_a_file_of_another_project_than_the_step_s_is_that_of_the_copy_at_work(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """As of a checker of the user's project, which a step of Temper's calls."""
    name = f"beside_{secrets.token_hex(6)}"

    def copied(to: str) -> Path:
        folder = tmp_path / to
        for part in ("code", "data"):
            (folder / part).mkdir(parents=True)
        (folder / place / "rule.txt").write_text("short")
        (folder / "code" / f"{name}.py").write_text(
            "from pathlib import Path\n\ndef rule():\n"
            f"    return (Path(__file__).parents[1] / '{place}/rule.txt').read_text()\n"
        )
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder / "code"))
        return folder

    first = copied("one")
    project.step(f"result = {name}.rule()", before=f"import {name}")
    assert project.run() == "short"
    assert project.is_cached()
    second = copied("two")
    assert project.is_cached(), "a copy of the project has the same artifacts"
    (second / place / "rule.txt").write_text("long")
    assert project.reason().endswith("rule.txt, which it read, changed")
    (second / "code" / f"{name}.py").unlink()
    assert project.is_cached(), "the code is imported from the first copy again"
    (first / place / "rule.txt").write_text("long")
    assert not project.is_cached()


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_a_file_of_a_project_is_named_after_a_module_wherever_the_run_begins(
    tmp_path: Path, mark: str
) -> None:
    home, top = Home("steps.judge", "/elsewhere/temper"), tmp_path / "project"
    (top / "src").mkdir(parents=True)
    (top / mark).touch()

    def name(path: Path) -> str:
        return home.name(str(path), (), {str(top / "src"): "mine"})

    assert name(top / "src/rule.txt") == "<mine>/rule.txt"
    assert name(top / "data/rule.txt") == "<mine>/../data/rule.txt"
    assert name(tmp_path / "rule.txt") == str(tmp_path / "rule.txt")
    assert name(tmp_path / "project-2/rule.txt") == str(tmp_path / "project-2/rule.txt")


READS_BESIDE = """
from pathlib import Path
from pipeline import File, Output, step

@step
def look(out: Output, one: File, other: File) -> dict:
    result = (Path(one.url).parent / "PLACE").read_text()
    (out.path / "result.txt").write_text(result)
    return {"result": result}
"""


@pytest.mark.parametrize(("top", "place"), [("", "rule.txt"), ("code", "../rules/rule.txt")])
def test_a_file_beside_an_input_is_the_one_beside_the_input_at_hand(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: str, place: str
) -> None:
    """As of the images that rows name relative to their data file: a copy of that file in another
    folder has the same key. A folder for temporary files does not count by itself."""
    data = tmp_path / top
    project.write("steps.py", READS_BESIDE.replace("PLACE", place))
    for folder in ("a", "b"):
        (data / folder / "rows").mkdir(parents=True)
        (data / folder / "rows/rows.jsonl").write_text("{}")
        rule = data / folder / "rows" / place
        rule.parent.mkdir(exist_ok=True)
        rule.write_text(folder)

    def look(one: str, other: str) -> Step:
        look_again()
        module = importlib.import_module(f"{project.name}.steps")
        return module.look(File(one), File(other))

    def is_cached(one: str, other: str) -> bool:
        [planned] = make_plan({"look": look(one, other)}, project.store).steps
        return planned.state is State.CACHED

    def made(one: str, other: str) -> str:
        step = {"look": look(one, other)}
        return run(step, project.store, console=Console(quiet=True))["look"].metrics["result"]

    a, b = (str(data / folder / "rows/rows.jsonl") for folder in ("a", "b"))
    assert made(a, a) == "a"
    assert is_cached(a, a)
    [planned] = make_plan({"look": look(b, b)}, project.store).steps
    assert planned.reason == f"{place} beside an input, which it read, changed"
    assert made(b, b) == "b"
    assert is_cached(a, a)
    assert is_cached(b, b)
    assert not is_cached(b, a), "two inputs do not lie in one folder any more"
    assert made(b, a) == "b"
    assert made(a, b) == "a"
    assert is_cached(b, a)
    monkeypatch.chdir(data / "b/rows")
    assert made("rows.jsonl", "rows.jsonl") == "b"
    (data / "a/rows" / place).write_text("c")
    assert made(a, a) == "c"
    (data / "a/rows" / place).write_text("d")
    [planned] = make_plan({"look": look(a, a)}, project.store).steps
    assert planned.reason.count("which it read, changed") == 1, "it has two names"


INTERRUPTED = """
first, state = out.scratch / "first", out.scratch / "state"
if not first.exists():
    first.write_text((HERE / "first.txt").read_text())
done = state.read_text() if state.exists() else ""
while len(done) < 4:
    done += (HERE / "each.txt").read_text()
    state.write_text(done)
    if len(done) == 2 and Path("STOP").exists():
        Path("STOP").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
result = f"{first.read_text()} {done}"
"""


def interrupted(project: Project, tmp_path: Path, decorator: str = "@step") -> None:
    """A step that is killed when scratch has half of its result, which is of two files."""
    for name in ("first", "each"):
        project.write(f"{name}.txt", "1")
    (stop := tmp_path / "stop").touch()
    body = INTERRUPTED.replace("STOP", str(stop))
    project.step(body, before="import os, signal", decorator=decorator)
    with pytest.raises(RunFailed):
        project.run()


def test_results_in_scratch_are_used_while_what_they_depend_on_is_unchanged(
    project: Project, tmp_path: Path
) -> None:
    interrupted(project, tmp_path)
    os.utime(project.path("each.txt"))
    assert "goes on from its scratch" in project.planned().reason
    project.path("first.txt").unlink()
    project.write("first.txt", "1")
    project.write("steps.py", project.path("steps.py").read_text() + "# a comment")
    assert project.run() == "1 1111"
    manifest = project.manifest()
    assert manifest.provenance["spent"]["resumed"] is True
    assert project.discovered() == {"first.txt", "each.txt"}
    assert project.is_cached()
    project.write("first.txt", "2")  # which only the killed attempt has read
    assert project.reason() == "first.txt, which it read, changed"


@pytest.mark.parametrize("changed", ["first", "each"])
def test_results_in_scratch_are_dropped_if_what_they_depend_on_has_changed(
    project: Project, tmp_path: Path, changed: str
) -> None:
    interrupted(project, tmp_path)
    project.write(f"{changed}.txt", "2")
    planned = project.reason()
    assert "; begins anew, and not from its scratch of " in planned
    assert planned.endswith(f": {changed}.txt, which it read, changed")
    assert project.run() == {"first": "2 1111", "each": "1 2222"}[changed]
    assert project.is_cached()
    assert "resumed" not in project.manifest().provenance["spent"]


def test_a_version_keeps_results_in_scratch_whatever_they_depend_on(
    project: Project, tmp_path: Path
) -> None:
    interrupted(project, tmp_path, '@step(version="1")')
    project.write("each.txt", "2")
    assert "goes on from its scratch" in project.planned().reason
    assert project.run() == "1 1122"


def test_a_file_that_was_looked_for_in_vain_is_a_dependency(project: Project) -> None:
    project.step(
        """
        try:
            result = open(HERE / "local.txt").read()
        except FileNotFoundError:
            result = "default"
        """
    )
    assert project.run() == "default"
    assert project.is_cached()
    project.write("local.txt", "mine")
    assert project.reason() == "local.txt, which it looked for, is there now"
    assert project.run() == "mine"


def test_links_and_folders_that_a_step_looks_at_are_dependencies(project: Project) -> None:
    project.write("v1/text.txt", "1")
    project.write("v2/text.txt", "2")
    project.path("latest").symlink_to("v1")
    project.write("extra/unread.txt", "")
    project.step(
        """
        folder = HERE.resolve()
        result = ((folder / "latest").resolve() / "text.txt").read_text()
        result += str((HERE / "extra").is_dir())
        """
    )
    assert project.run() == "1True"
    assert project.discovered() == {"latest", "v1/text.txt", "extra"}
    project.write("extra/another.txt", "")
    assert project.is_cached()
    project.path("latest").unlink()
    project.path("latest").symlink_to("v2")
    assert project.reason() == "latest, which it read, changed"
    project.path("latest").unlink()
    project.path("latest").symlink_to("v1")
    project.path("extra").rename(project.path("other"))
    assert project.reason() == "extra, which it read, is gone"


@pytest.mark.parametrize(
    "name", ['"text.txt"', 'os.path.abspath("text.txt")', 'Path.cwd() / "text.txt"']
)
def test_a_relative_path_counts_from_the_working_folder(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text.txt").write_text(folder)
    monkeypatch.chdir(tmp_path / "a")
    project.step(f"import os\nresult = open({name}).read()")
    assert project.run() == "a"
    assert project.is_cached()
    monkeypatch.chdir(tmp_path / "b")
    assert project.reason() == "./text.txt, which it read, changed"
    (tmp_path / "b" / "text.txt").write_text("a")
    assert project.is_cached()


def test_what_a_step_wrote_itself_is_its_own(project: Project) -> None:
    project.step(
        """
        import os, sqlite3
        folder = HERE / "cache"
        folder.mkdir(exist_ok=True)
        (folder / "new").write_text("1")
        os.replace(folder / "new", folder / "old")
        with sqlite3.connect(folder / "db.sqlite") as database:
            database.execute("create table if not exists t (x)")
        with open(HERE / "journal.txt", "a") as journal:
            journal.write("a line")
        result = (folder / "old").read_text() + str(len(os.listdir(folder)))
        """
    )
    project.run()
    assert project.discovered() == set()
    (project.path("journal.txt")).write_text("")
    assert project.is_cached()


def test_a_file_that_is_read_and_then_written_is_what_it_was_before(project: Project) -> None:
    project.write("state.txt", "1")
    project.step(
        """
        path = HERE / "state.txt"
        result = int(path.read_text())
        path.write_text(str(min(result + 1, 2)))
        """
    )
    assert project.run() == "1"
    assert project.reason() == "state.txt, which it read, changed"
    assert project.run() == "2"
    assert project.is_cached(), "it left the file as it was"


def test_inputs_libraries_and_the_store_are_no_discovered_dependencies(project: Project) -> None:
    project.step(
        """
        import json, tempfile
        import numpy
        Path(numpy.__file__).read_text()
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write("x")
        Path("/proc/self/status").read_text()
        (out.scratch / "x").write_text("1")
        result = (out.scratch / "x").read_text()
        (Path(__file__).parent / "mine.egg-info" / "entry_points.txt").exists()
        """
    )
    project.run()
    assert project.discovered() == set()


def test_files_that_native_code_opens_are_dependencies(project: Project) -> None:
    project.write("rows.csv", "x\n1\n")
    project.write("more/rows.csv", "x\n2\n")
    project.step(
        """
        import os
        folder = HERE / "more"
        own = csv.read_csv(str(HERE / "rows.csv"))["x"].to_pylist()
        result = own + dataset(folder, format="csv").to_table()["x"].to_pylist()
        """,
        "from pyarrow import csv\nfrom pyarrow.dataset import dataset",
    )
    assert project.run() == "[1, 2]"
    assert project.discovered() == {"rows.csv", "more", "more/rows.csv"}
    assert project.is_cached()


def test_files_that_started_programs_open_are_dependencies(project: Project) -> None:
    project.write("count.sh", "cat rows/*.txt > all.txt; wc -l < all.txt")
    project.write("rows/a.txt", "1\n")
    project.write("notes.txt", "")
    project.step(
        """
        import subprocess
        result = subprocess.check_output(["sh", "count.sh"], cwd=HERE, env={}, text=True).strip()
        """
    )
    assert project.run() == "1"
    assert project.discovered() == {"count.sh", "rows", "rows/a.txt"}
    project.write("notes.txt", "new")
    assert project.is_cached()
    project.write("rows/a.txt", "1\n2\n")
    assert project.reason() == "rows/a.txt, which it read, changed"
    assert project.run() == "2"
    project.write("rows/b.txt", "1\n")
    assert project.reason() == "what is in the folder rows, which it listed, changed"


def test_a_file_edited_while_the_step_runs_is_not_taken_for_what_it_read(project: Project) -> None:
    project.write("prompts/system.txt", "old")
    project.step(
        """
        import os, subprocess
        result = (HERE / "prompts" / "system.txt").read_text()
        unseen = {"PATH": os.environ["PATH"], "TEMPER_OBSERVED": ""}
        edit = "echo new > prompts/system.txt"
        subprocess.run(["sh", "-c", edit], cwd=HERE, env=unseen, check=True)
        """
    )
    assert project.run() == "old"
    assert project.reason() == "prompts/system.txt, which it read, changed while it ran"


# --- modules and functions -----------------------------------------------------------------------

PLUGINS = {
    "registry.py": "SEEN = []\ndef register(name):\n    SEEN.append(name)\n",
    "plugins/__init__.py": "",
    "plugins/a.py": "from APP import registry\nregistry.register('a')\n",
    "plugins/b.py": "from APP import registry\nregistry.register('b')\n",
}
IMPORT_PLUGINS = """
    import importlib, pkgutil
    from APP import plugins, registry
    for found in pkgutil.iter_modules(plugins.__path__):
        importlib.import_module(f"{plugins.__name__}.{found.name}")
    result = " ".join(registry.SEEN)
"""


def test_plugins_found_in_a_folder_are_dependencies(project: Project) -> None:
    for file, text in PLUGINS.items():
        project.write(file, text)
    project.step(IMPORT_PLUGINS.replace("APP", project.name))
    assert project.run() == "a b"
    assert project.is_cached()
    project.write("plugins/b.py", PLUGINS["plugins/b.py"].replace("'b'", "'B'"))
    assert project.reason() == "registry.register('B') changed (plugins/b.py:2)"
    assert project.run() == "a B"
    project.write("plugins/c.py", PLUGINS["plugins/b.py"].replace("'b'", "'c'"))
    assert project.reason() == "what is in the folder plugins, which it listed, changed"
    assert project.run() == "a B c"


def test_a_module_imported_by_a_computed_name_is_a_dependency(project: Project) -> None:
    project.write("loss_a.py", "from APP.math import double\ndef loss():\n    return double(1)\n")
    project.write("loss_b.py", "def loss():\n    return 3\n")
    project.write("math.py", "def double(x):\n    return 2 * x\n")
    project.step(
        """
        import importlib
        result = importlib.import_module(f"{__package__}.loss_{name}").loss()
        """
    )
    assert project.run() == "2"
    assert project.discovered() == {"loss_a", "math"}
    project.write("loss_b.py", "def loss():\n    return 4\n")
    assert project.is_cached(), "it did not import that"
    project.write("math.py", "def double(x):\n    return 2 * x + 1\n")
    assert project.reason() == "double changed (math.py:1)"
    assert project.run() == "3"


def test_a_function_found_by_a_computed_name_is_a_dependency(project: Project) -> None:
    project.write(
        "losses.py",
        """
        def base():
            return 0

        def loss_a():
            return 1

        class LossB:
            def __call__(self):
                return 2
        """,
    )
    project.step(
        """
        import sys
        losses = vars(sys.modules[losses_name()])
        result = base() + (losses["loss_a"]() if name == "a" else losses["LossB"]()())
        """,
        before="from APP.losses import base\nlosses_name = lambda: __package__ + '.losses'".replace(
            "APP", project.name
        ),
    )
    assert project.run() == "1"
    text = project.path("losses.py").read_text()
    project.path("losses.py").write_text(text.replace("return 1", "return 5"))
    assert project.run() == "5"
    assert project.run("b") == "2"
    project.path("losses.py").write_text(text.replace("return 2", "return 3"))
    assert project.run("b") == "3"


def test_a_module_loaded_from_a_file_is_a_dependency(project: Project) -> None:
    project.write("extra/task.py", "VALUE = 1\n")
    project.step(
        """
        from importlib.util import module_from_spec, spec_from_file_location
        spec = spec_from_file_location("the_task", HERE / "extra" / "task.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        result = module.VALUE
        """
    )
    assert project.run() == "1"
    assert project.is_cached()
    project.write("extra/task.py", "VALUE = 2\n")
    assert project.reason() == "VALUE changed (extra/task.py:1)"
    assert project.run() == "2"


def test_files_of_a_package_that_only_a_finder_of_its_own_finds_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setuptools installs some packages so that one can edit them; this one lies below /tmp."""
    package = tmp_path / "src" / "apart"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            file = package / "__init__.py"
            return spec_from_file_location(name, file) if name == "apart" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    rules = Rules.of("apart", project_roots("apart"), ())
    assert rules.counts(str(package / "data.txt"))


def test_a_traceback_reads_no_source(project: Project) -> None:
    project.write("model.py", "def forward(x):\n    raise ValueError(x)\n")
    project.step(
        """
        import traceback
        try:
            forward(1)
        except ValueError:
            result = "raise ValueError(x)" in traceback.format_exc()
        """,
        f"from {project.name}.model import forward",
    )
    assert project.run() == "True"
    assert not project.manifest().discovered.files


@pytest.mark.parametrize("how", ["given an environment", "by a shell"])
def test_a_python_that_a_step_starts_is_observed(project: Project, how: str) -> None:
    project.write("tools/count.py", "import few\nprint(few.count(), open('data.txt').read())\n")
    project.write("tools/few.py", "def count():\n    return 1\n")
    project.write("data.txt", "a")
    project.write("count.sh", '"$1" tools/count.py\n')
    command = {
        "given an environment": "run([sys.executable, 'tools/count.py'], env={'PYTHONPATH': 'x'}",
        "by a shell": "run(['sh', 'count.sh', sys.executable]",
    }[how]
    project.step(
        f"""
        import subprocess, sys
        result = subprocess.{command}, cwd=HERE, stdout=-1, text=True).stdout.strip()
        """
    )
    assert project.run() == "1 a"
    assert project.is_cached()
    project.write("tools/count.py", "import few\nprint(few.count())\n")
    assert project.reason() == "tools/count.py, which it read, changed"
    assert project.run() == "1"
    project.write("tools/few.py", "def count():\n    return 2\n")
    assert project.reason() == "count changed (tools/few.py:1)"


def test_a_started_python_has_its_own_path_and_counts_modules_by_their_code(
    project: Project,
) -> None:
    project.write(
        "tool.py", "import os\nfrom APP.few import f\nprint(f(), os.environ['PYTHONPATH'])"
    )
    project.write("few.py", "def f():\n    return 1\n")
    project.step(
        """
        import os, subprocess, sys
        env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        command = [sys.executable, "-m", "APP.tool"]
        result = subprocess.run(command, env=env, stdout=-1, text=True).stdout
        """.replace("APP", project.name)
    )
    assert project.run() == f"1 {project.folder}\n"
    project.write("few.py", "def f():  # one\n    return 1\n")
    assert project.is_cached()


# --- processes of a step -------------------------------------------------------------------------

PIECE = """
    import importlib, os
    from pathlib import Path

    def work(number):
        helper = importlib.import_module(f"{__package__}.helper_{number}")
        text = (Path(__file__).parent / f"data_{number}.txt").read_text()
        return helper.value() + int(text)

    def dying(number):
        work(number)
        os._exit(3)
"""


def write_pieces(project: Project) -> None:
    project.write("piece.py", PIECE)
    for number in (1, 2):
        project.write(f"helper_{number}.py", f"def value():\n    return {number}\n")
        project.write(f"data_{number}.txt", f"{number}0")


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(m, marks=pytest.mark.slow) for m in ("spawn", "forkserver"))]
)
def test_processes_that_a_step_starts_are_observed(project: Project, method: str) -> None:
    write_pieces(project)
    project.step(
        f"""
        import multiprocessing
        context = multiprocessing.get_context({method!r})
        with context.Pool(2) as pool:
            result = sum(pool.map(work, [1, 2]))
        end = context.Process(target=dying, args=(1,))
        end.start()
        end.join()
        result += end.exitcode
        """,
        f"from {project.name}.piece import work, dying",
    )
    assert project.run() == "36"
    found = {"piece", "helper_1", "helper_2", "data_1.txt", "data_2.txt"}
    assert project.discovered() == found
    assert project.is_cached()
    project.write("helper_2.py", "def value():\n    return 5\n")
    assert project.reason() == "value changed (helper_2.py:1)"
    project.write("data_1.txt", "11")
    assert project.run() == "40"


def test_ranks_are_observed(project: Project) -> None:
    write_pieces(project)
    project.write("tools/count.py", "import few\n")
    project.write("tools/few.py", "")
    project.step(
        """
        import os, subprocess, sys
        result = [work(1), work(2)][int(os.environ["RANK"])] if name == "a" else 0
        subprocess.run([sys.executable, HERE / "tools" / "count.py"], check=True)
        """,
        f"from {project.name}.piece import work",
    )
    step = project.look().on(processes=2)
    run({"look": step}, project.store, console=Console(quiet=True))
    found = {"piece", "helper_1", "helper_2", "data_1.txt", "data_2.txt"}
    assert project.discovered() == found | {"tools", "tools/count.py", "tools/few.py"}
    assert project.is_cached()
    project.write("helper_2.py", "def value():\n    return 5\n")
    assert project.reason() == "value changed (helper_2.py:1)"


# --- what is imported, when and from which bytes -------------------------------------------------


@pytest.mark.parametrize("reader", ["import", "getsource", "spawned"])
def test_source_edited_while_a_step_runs_changes_nothing_for_it(
    project: Project, reader: str
) -> None:
    project.write("late.py", "def value():\n    return 'old'\n")
    project.write("editing.sh", "for f in l*.py; do sed -i s/old/new/ $f; done\n")
    how = {
        "import": "from APP.late import value\nresult = value()",
        "getsource": """
            import inspect
            from APP.late import value
            result = "old" in inspect.getsource(value) and "old"
            """,
        "spawned": """
            import multiprocessing
            from APP.late import value
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                result = pool.apply(value)
            """,
    }[reader]
    body = "import subprocess\nsubprocess.run(['sh', 'editing.sh'], cwd=HERE, check=True)\n"
    early = f"import {project.name}.late\n" if reader == "getsource" else ""
    project.step(body + textwrap.dedent(how).replace("APP", project.name), early)
    assert project.run() == "old"
    assert "new" in project.path("late.py").read_text()
    assert not project.is_cached(), "the next run sees the edit"


# --- more than one user of a store ---------------------------------------------------------------


def test_a_declared_version_stands_for_what_was_discovered(project: Project) -> None:
    project.write("prompts/system.txt", "be kind")
    project.step(READ_PROMPT, decorator='@step(version="1")')
    assert project.run() == "be kind"
    assert project.planned().reason == ""
    project.write("prompts/system.txt", "be brief")
    assert project.is_cached()
    reason = project.planned().reason
    assert "prompts/system.txt, which it read, changed" in reason
    assert reason.endswith("version '1' does not")


def test_two_copies_of_a_project_share_a_store(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of their own: each has the modules from its own place."""
    project.write("prompts/system.txt", "be kind")
    project.step(READ_PROMPT)
    script = """
        import sys
        from rich.console import Console
        from pipeline import run
        from APP.steps import look
        made = run([look("a")], sys.argv[1], console=Console(quiet=True))
        print(made["look"].metrics["result"], made["look"].manifest.generation)
    """
    project.write("../main.py", script)
    shutil.copytree(project.folder, tmp_path / "copy")
    other = Project(tmp_path / "copy", project.store, project.name)

    def run_in(folder: Path) -> str:
        return printed_by(folder / "main.py", project.store.url, path=str(REPOSITORY)).strip()

    assert run_in(project.folder) == "be kind 0"
    assert run_in(other.folder) == "be kind 0", "the same files in another place"
    other.write("prompts/system.txt", "be brief")
    assert run_in(other.folder) == "be brief 1"
    assert run_in(project.folder) == "be kind 0"
    assert run_in(other.folder) == "be brief 1"


@pytest.mark.attack
def test_it_holds_on_a_store_in_a_bucket(project: Project, gcs_bucket: str) -> None:
    project.store = Store(f"{gcs_bucket}/{secrets.token_hex(4)}")
    project.write("prompts/system.txt", "be kind")
    project.step(READ_PROMPT)
    assert project.run() == "be kind"
    assert project.discovered() == {"prompts/system.txt"}
    assert project.is_cached()
    project.write("prompts/system.txt", "be brief")
    assert project.run() == "be brief"
    project.write("prompts/system.txt", "be kind")
    assert project.is_cached()


def test_what_follows_runs_again_only_if_the_result_is_another(project: Project) -> None:
    project.write("prompts/system.txt", "be kind ")
    project.step(READ_PROMPT.replace("read_text()", "read_text().strip()"))
    project.path("steps.py").write_text(
        project.path("steps.py").read_text()
        + textwrap.dedent(
            """
            from pipeline import Artifact
            @step
            def follow(out: Output, made: Artifact) -> dict:
                text = (made / "result.txt").read_text()
                (out.path / "x.txt").write_text(text)
                return {"result": text}
            """
        )
    )

    def states() -> list[State]:
        step = project.look()
        follow = importlib.import_module(f"{project.name}.steps").follow(step)
        states = [planned.state for planned in make_plan({"f": follow}, project.store).steps]
        run({"follow": follow}, project.store, console=Console(quiet=True))
        return states

    assert states() == [State.RUN, State.RUN]
    assert states() == [State.CACHED, State.CACHED]
    project.write("prompts/system.txt", "be kind  ")
    assert states() == [State.RUN, State.MAYBE]
    assert states() == [State.CACHED, State.CACHED]
    assert len(Catalog(project.store).history("follow")) == 1


def test_a_file_edited_during_a_run_leaves_what_was_cached_as_it_was(project: Project) -> None:
    """The run goes on with what it planned; the next one sees the edit."""
    project.write("prompts/system.txt", "be kind")
    project.step(READ_PROMPT)
    text = """
        import subprocess

        @step
        def edit(out: Output) -> dict:
            edit = "cd prompts && for f in s*; do echo new > $f; done"
            subprocess.run(["sh", "-c", edit], cwd=HERE, check=True)
            return {}
        """
    steps = project.path("steps.py")
    steps.write_text(steps.read_text() + textwrap.dedent(text))
    project.run()
    look = project.look()
    edit = importlib.import_module(f"{project.name}.steps").edit()
    made = run({"edit": edit, "look": look}, project.store, console=Console(quiet=True))
    assert made["look"].metrics["result"] == "be kind"
    assert project.run() == "new\n"


# --- the terminal --------------------------------------------------------------------------------


def temper(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_a_discovered_change_can_be_accepted(project: Project) -> None:
    project.write("prompts/system.txt", "be kind")
    project.step(READ_PROMPT)
    project.run()
    project.write("prompts/system.txt", "be kind, please")
    told = temper("accept", "look", "--yes", "--store", project.store.url)
    assert "prompts/system.txt, which it read, changed" in told
    assert "1 artifact valid again" in told
    assert project.run() == "be kind"
    project.write("prompts/system.txt", "be brief")
    assert project.run() == "be brief"


def test_gc_keeps_what_a_plan_would_use(project: Project) -> None:
    project.write("prompts/system.txt", "be kind")
    project.step(READ_PROMPT)
    project.run()
    kept = project.manifest()
    project.write("prompts/system.txt", "be brief")
    project.run()
    project.write("prompts/system.txt", "be kind")
    collect = ("gc", "--keep-last", "1", "--grace", "0", "--yes", "--store", project.store.url)
    temper(*collect)
    assert (Path(project.store.content_path(kept)) / "result.txt").exists()
    project.write("prompts/system.txt", "be brief")
    temper(*collect)
    assert not (Path(project.store.content_path(kept)) / "result.txt").exists()
    assert json.loads(json.dumps(project.run())) == "be brief"


def begun(tmp_path: Path, then: str) -> str:
    """What a process prints that begins to observe itself, with its temporary files in a folder."""
    code = f"""
        import os, signal
        from pipeline.observed.observation import Observation
        from pipeline.observed.path_filter import Rules

        print(Observation.begin(Rules((), (), "x")).folder, flush=True)
        {then}
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.stdout.strip()


def test_what_a_killed_worker_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    for _ in range(2):
        folder = begun(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
        assert list(tmp_path.iterdir()) == [Path(folder)]


def test_a_worker_whose_step_has_closed_every_file_still_observes(tmp_path: Path) -> None:
    other = "print(Observation.begin(Rules((), (), 'x')).folder, flush=True)"
    folders = begun(tmp_path, f"os.closerange(3, 99); {other}; os._exit(0)").split()
    assert {*tmp_path.iterdir()} == {*map(Path, folders)}
    assert len(folders) == 2
