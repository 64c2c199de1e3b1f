"""A script in a process of its own, and what it finds around it: programs, libraries, streams."""

import base64
import hashlib
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from drivers import Driver

SCRIPT = """
from pipeline import Metrics, Output, run, step
IMPORTS

@step
def look(out: Output) -> Metrics:
    (out.path / "seen.txt").write_text("seen")
    return {"seen": SEEN}

if __name__ == "__main__":
    made = run({"look": look()}, store="store")
    print("seen:", made["look"].metrics["seen"])
"""


class Script:
    """A script with one step, run in its folder as users run one."""

    def __init__(self, folder: Path, imports: str, seen: str):
        self.folder = folder
        self.write("script.py", SCRIPT.replace("IMPORTS", imports).replace("SEEN", seen))

    def write(self, file: str, text: str) -> None:
        (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / file).write_text(textwrap.dedent(text))

    def run(self, path: str = "", redirections: str = "") -> tuple[str, bool]:
        """What the step saw, and whether it ran."""
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" script.py {redirections}', sys.executable],
            cwd=self.folder,
            env=self._environment(path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return self._read(done.stdout)

    def run_forked(self, path: str = "") -> tuple[str, bool]:
        """The same from a fork; what an interpreter of its own sees is shown by other runs."""
        driver = Driver(["script.py"], self.folder, self._environment(path))
        printed = driver.communicate()
        assert driver.returncode == 0, printed
        return self._read(printed)

    def _environment(self, path: str) -> dict[str, str]:
        known = os.environ.get("PYTHONPATH", "")
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, known]))}

    def _read(self, printed: str) -> tuple[str, bool]:
        seen = printed.rpartition("seen: ")[2].split()[0]
        return seen, "the only step is cached" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("where", ["import __main__", ""])
def test_code_that_looks_at_the_program_of_its_process_is_cached(
    tmp_path: Path, where: str
) -> None:
    script = Script(tmp_path, "from looking import is_interactive", "is_interactive()")
    script.write(
        "looking.py",
        f"""
        {where}

        def is_interactive():
            import __main__
            return not hasattr(__main__, "__file__")
        """,
    )
    assert script.run() == ("False", True)
    assert script.run_forked() == ("False", False)


LIBRARY = "import os\nos.listdir(os.path.dirname(__file__))\nVALUE = 1\n"


def install(script: Script, text: str) -> None:
    """Puts a library into the folder ``libraries``, as ``pip install --target`` does."""
    script.write("libraries/a_library/__init__.py", text)
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    record = (
        f"a_library/__init__.py,sha256={digest},{len(text)}\na_library-1.0.dist-info/RECORD,,\n"
    )
    record += "../neighbour.py,,\n"  # no file of this folder
    script.write("libraries/a_library-1.0.dist-info/RECORD", record)


@pytest.mark.slow
def test_what_pip_puts_into_a_folder_is_installed_and_the_files_beside_it_are_not(
    tmp_path: Path,
) -> None:
    script = Script(
        tmp_path,
        "import a_library, a_neighbour, neighbour",
        "a_neighbour.VALUE + neighbour.VALUE",
    )
    install(script, LIBRARY)
    script.write("libraries/a_neighbour.py", "VALUE = 1\n")
    script.write("neighbour.py", "VALUE = 0\n")
    folder = str(tmp_path / "libraries")

    assert script.run(folder) == ("1", True)
    install(script, LIBRARY + "CHANGED = 1\n")
    script.write("libraries/a_library/more.py", "")
    assert script.run_forked(folder) == ("1", False)
    script.write("libraries/a_neighbour.py", "VALUE = 2\n")
    assert script.run_forked(folder) == ("2", True)
    script.write("neighbour.py", "VALUE = 1\n")
    assert script.run_forked(folder) == ("3", True)


@pytest.mark.slow
def test_an_installed_file_that_was_edited_in_place_is_code_of_the_project(tmp_path: Path) -> None:
    script = Script(tmp_path, "import a_library", "a_library.VALUE")
    install(script, LIBRARY)
    folder = str(tmp_path / "libraries")
    assert script.run_forked(folder) == ("1", True)
    for value in ("2", "3"):
        script.write("libraries/a_library/__init__.py", LIBRARY.replace("1", value))
        assert script.run_forked(folder) == (value, True)
        assert script.run_forked(folder) == (value, False)
    install(script, LIBRARY)
    assert script.run_forked(folder) == ("1", False)


def test_a_library_whose_folder_a_step_adds_to_the_path_is_code_of_the_project(
    tmp_path: Path,
) -> None:
    """A plan does not know the folder, so it could not see that the library is edited."""
    script = Script(tmp_path, "import sys", "imported()")
    install(script, LIBRARY)
    text = (tmp_path / "script.py").read_text()
    script.write(
        "script.py",
        """
        def imported():
            sys.path.insert(0, __file__.rpartition("/")[0] + "/libraries")
            import a_library
            return a_library.VALUE

        """
        + textwrap.indent(text, " " * 8),
    )
    assert script.run_forked() == ("1", True)
    script.write("libraries/a_library/__init__.py", LIBRARY.replace("1", "2"))
    assert script.run_forked() == ("2", True)


@pytest.mark.slow
def test_a_step_in_one_process_is_no_rank_of_a_job_in_which_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``torchrun``, ``srun`` and ``mpirun`` tell each of their processes which one it is."""
    told = ("RANK", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_RANK")
    for name in (*told, "SLURM_STEP_NUM_TASKS"):
        monkeypatch.setenv(name, "8")
    script = Script(tmp_path, "import os, numpy", f"len({{*{told}}} & {{*os.environ}})")
    assert script.run() == ("0", True)
    [log] = tmp_path.glob("store/attempts/look/*/*/log.txt")
    assert "begins again" not in log.read_text()


@pytest.mark.slow
def test_steps_run_their_assertions_however_python_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    assert Script(tmp_path, "import os", "__debug__").run() == ("True", True)


@pytest.mark.parametrize("name", ["folder/__main__.py", "train", "train.v2.py"])
def test_a_script_that_no_worker_can_import_is_refused_by_its_name(
    tmp_path: Path, name: str
) -> None:
    script = Script(tmp_path, "import os", "0")
    script.write(name, (tmp_path / "script.py").read_text())
    done = subprocess.run(
        [sys.executable, name.removesuffix("/__main__.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"look is defined in {Path(name).name}, which no worker can import" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_steps_in_an_archive_run_again_if_it_changes(tmp_path: Path) -> None:
    script = Script(tmp_path, "", "1")
    code = "import sys; sys.path.insert(0, 'app.zip'); import packed, pipeline; pipeline.run("
    code += "{'look': packed.look()}, 'store')"
    for text in ("", "", "# edited\n"):
        with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
            archive.writestr("packed.py", (tmp_path / "script.py").read_text() + text)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=script.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert "1 step made" in done.stdout
