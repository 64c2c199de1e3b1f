"""Workers that are forked from a parent which has imported their libraries.

They have to be as good as workers that are started afresh: the experiments here are run both ways.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from drivers import Driver
from places import REPOSITORY
from waiting import wait_until

from pipeline.wire import forking

pytestmark = pytest.mark.skipif(not forking.is_possible(), reason="workers can be forked on Linux")

LIBRARY = """
import os
with open(os.environ["IMPORTS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
MODE = os.environ.get("HEAVY_MODE", "unset")
FOLDER = os.getcwd()
try:
    import maybe_there
except ImportError:
    maybe_there = None
from heavy import part
"""
HEAD = """
import os, random, signal, subprocess, sys, threading, time
from pathlib import Path
from pipeline import Metrics, Output, step

def told(**more):
    import heavy
    return {"pid": os.getpid(), "parent": os.getppid(), "mode": heavy.MODE, **more}
"""
PLAIN = """
@step
def work(out: Output, number: int = 0) -> Metrics:
    hidden = "heavy" not in sys.modules and "heavy.part" not in sys.modules
    import heavy
    (out.path / "result").write_text(f"{heavy.part.VALUE + number}")
    return told(hidden=hidden, part="heavy.part" in sys.modules, draw=random.random())
"""
DRIVER = """
import json, sys
from pipeline import run
from pipeline.launchers.config import LauncherConfig, LocalConfig
import work
if __name__ == "__main__":
    store, warm, jobs = sys.argv[1:]
    steps = work.steps() if hasattr(work, "steps") else [work.work(n) for n in range(2)]
    launcher = LauncherConfig(local=LocalConfig(warm=warm == "warm"))
    made = run(steps, store, int(jobs), launcher=launcher, verbosity=-1)
    print("RESULT", json.dumps([
        {**m.metrics, "digest": m.digest, "discovered": vars(m.manifest.discovered)}
        for m in made.values()
    ]))
"""


@dataclass
class Lab:
    """A project with a library beside it, that says in which processes it was imported."""

    folder: Path

    def __post_init__(self) -> None:
        self.imports = self.folder / "outside" / "imports"
        self.library = self.folder / "site-packages" / "heavy"
        self.project = self.folder / "project"
        for folder in (self.imports.parent, self.library, self.project):
            folder.mkdir(parents=True)
        (self.library / "__init__.py").write_text(LIBRARY)
        (self.library / "part.py").write_text("VALUE = 7\n")
        (self.project / "driver.py").write_text(DRIVER)
        self.write(PLAIN)

    def write(self, code: str) -> None:
        (self.project / "work.py").write_text(HEAD + code)

    def start(self, way: str = "warm", jobs: int = 1, is_parent: bool = False) -> Driver:
        words, environment = self._command(way, jobs)
        return Driver(words, self.project, environment, is_parent)

    def _command(self, way: str, jobs: int) -> tuple[list[str], dict[str, str]]:
        self.imports.write_text("")
        path = [str(REPOSITORY), str(self.folder / "site-packages")]
        environment = {
            name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"
        }
        words = ["driver.py", str(self.folder / f"store-{way}"), way, str(jobs)]
        more = {"PYTHONPATH": os.pathsep.join(path), "IMPORTS": str(self.imports)}
        return words, {**environment, **more}

    def run(self, way: str = "warm", jobs: int = 1) -> list[dict[str, Any]]:
        """What each step said, and its artifact."""
        return _results(self.start(way, jobs).communicate())

    def run_from_a_shell(self, way: str, jobs: int = 1) -> list[dict[str, Any]]:
        """The same with an interpreter of its own for the driver."""
        words, environment = self._command(way, jobs)
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return _results(done.stdout)

    def fail(self, way: str) -> str:
        """What is printed of a run that fails."""
        process = self.start(way)
        output = process.communicate()
        assert process.returncode != 0
        return output

    @property
    def importers(self) -> list[int]:
        """The processes that have imported the library."""
        return list(map(int, self.imports.read_text().split()))

    def importers_of(self, library: str) -> list[int]:
        """The same of another library, which is told from it by its name."""
        return list(map(int, Path(f"{self.imports}-{library}").read_text().split()))

    def logs(self, way: str = "warm", step: str = "*") -> str:
        found = sorted((self.folder / f"store-{way}").glob(f"attempts/{step}/*/*/log.txt"))
        return "".join(path.read_text() for path in found)


def _results(output: str) -> list[dict[str, Any]]:
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert lines, output
    return json.loads(lines[0].removeprefix("RESULT "))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_library_is_imported_once_for_all_steps_and_results_are_those_of_fresh_workers(
    lab: Lab,
) -> None:
    (lab.library / "__init__.py").write_text(
        LIBRARY + "import numpy.random\nprint('heavy is old', flush=True)\n"
    )
    (lab.project / "tool.py").write_text("import few\n")
    (lab.project / "few.py").touch()
    starts = "subprocess.run([sys.executable, 'tool.py'], check=True)"
    lab.write(
        PLAIN.replace("import heavy", f"import heavy; {starts}").replace(
            "draw=", "numbers=heavy.numpy.random.random(), draw="
        )
        + "def steps():\n    return [work(0), work(1), work(2)]\n"
    )

    def lasting(said: dict[str, Any]) -> Any:
        return said["digest"], said["discovered"], said["mode"]

    warm = lab.run_from_a_shell("warm", jobs=3)
    (importer,) = lab.importers
    assert {said["parent"] for said in warm} == {importer}
    assert len({said["pid"] for said in warm} - {importer}) == 3
    # a worker finds what it would find in a fresh interpreter
    assert all(said["hidden"] and said["part"] for said in warm)
    assert len({said["draw"] for said in warm}) == len({said["numbers"] for said in warm}) == 3
    # and so does a Python that the step starts
    assert all("few:*" in said["discovered"]["code"] for said in warm)
    # and what the import printed is in the log of every worker
    assert lab.logs().count("heavy is old") == 3
    fresh = lab.run_from_a_shell("fresh")
    assert lab.importers == [said["pid"] for said in fresh]
    assert list(map(lasting, warm)) == list(map(lasting, fresh))


@pytest.mark.attack
def test_a_worker_finds_the_process_that_a_fresh_one_finds(lab: Lab) -> None:
    lab.write(
        """
@step
def work(out: Output, number: int = 0) -> Metrics:
    import heavy
    variables = {n: v for n, v in os.environ.items() if not n.startswith("TEMPER_")}
    return told(
        variables=variables,
        files=len(os.listdir("/proc/self/fd")),
        handlers=[str(signal.getsignal(n)).split(" at ")[0] for n in range(1, 32)],
        blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        threads=sorted(thread.name for thread in threading.enumerate()),
        leads=os.getsid(0) == os.getpid() == os.getpgrp(),
        folder=os.getcwd(),
        path=sys.path,
        program=sys.argv[0],
        main=sys.modules["_".join(["", "", "main", "", ""])].__spec__.name,
        said=sys.stdin.read(),
        standard=[sys.stdout.isatty(), sys.stdout.encoding, sys.stderr.errors],
    )
"""
    )

    def of_the_process(said: dict[str, Any]) -> dict[str, Any]:
        own = ("pid", "parent", "digest", "discovered")
        return {name: value for name, value in said.items() if name not in own}

    warm, fresh = lab.run("warm"), lab.run("fresh")
    assert len({said["parent"] for said in warm}) == 1
    assert list(map(of_the_process, warm)) == list(map(of_the_process, fresh))
    assert warm[0]["leads"]


CHANGES = {
    "environment": 'os.environ["HEAVY_MODE"] = "mine"',
    "path": 'sys.path.insert(0, "/nowhere")',
    "folder": 'os.chdir("/")',
    "module": 'import types; sys.modules["heavy.part"] = types.ModuleType("heavy.part")',
    "stub": 'import types; sys.modules["maybe_there"] = types.ModuleType("maybe_there")',
    "finder": "sys.meta_path.insert(0, type('F', (), {'find_spec': lambda *a: None})())",
}


@pytest.mark.slow
def test_what_a_step_changes_before_it_imports_a_library_counts_for_the_import(lab: Lab) -> None:
    steps = "".join(
        f"""
@step
def change_{name}(out: Output) -> Metrics:
    (out.path / "result").write_text("begun")
    {change}
    import heavy
    return told(folder=heavy.FOLDER, found=heavy.maybe_there is not None)
"""
        for name, change in CHANGES.items()
    )
    called = ", ".join(f"change_{name}()" for name in CHANGES)
    lab.write(f"{steps}\ndef steps():\n    return [{called}]\n")
    warm, fresh = lab.run("warm"), lab.run("fresh")
    for name in ("mode", "folder", "found", "digest"):
        assert [said[name] for said in warm] == [said[name] for said in fresh]
    for name in CHANGES:
        assert lab.logs(step=f"change_{name}").count("begins again in a fresh interpreter") == 1


def test_what_a_step_changes_or_imports_afterwards_is_its_worker_s_alone(lab: Lab) -> None:
    (lab.project / "helper.py").write_text("import os, heavy\nPID = os.getpid()\n")
    lab.write(
        """
@step
def work(out: Output, number: int = 0) -> Metrics:
    import heavy
    os.environ["HEAVY_MODE"] = "late"
    from heavy import part
    import helper
    return told(loaded_by=helper.PID)
"""
    )
    made = lab.run()
    assert [said["mode"] for said in made] == ["unset"] * 2
    assert [said["loaded_by"] for said in made] == [said["pid"] for said in made]
    assert len(lab.importers) == 1


UNFIT = {  # in this order: no file can be found after the change of the working folder
    "a file of the project": "from pathlib import Path; TEXT = Path('settings.txt').read_text()",
    "project code": "import helper",
    "thread": "import threading as t; t.Thread(target=t.Event().wait, daemon=True).start()",
    "file": "import os; KEPT = os.open('/dev/null', os.O_RDONLY)",
    "signal": "import signal; signal.signal(signal.SIGUSR2, signal.SIG_IGN)",
    "working folder": "os.chdir('/')",
    "path": "import sys; sys.path.append('/nowhere')",
    "mask": "os.umask(0o077)",
    "seed": "import random; random.seed(1)",
    "numpy's seed": "import numpy; numpy.random.seed(1)",
}


@pytest.mark.attack
def test_a_library_whose_import_leaves_something_behind_is_imported_by_each_worker(
    lab: Lab,
) -> None:
    (lab.project / "helper.py").write_text("VALUE = 1\n")
    (lab.project / "settings.txt").write_text("one")
    names = [f"unfit_{number}" for number in range(len(UNFIT))]
    for name, code in zip(names, UNFIT.values(), strict=True):
        library = LIBRARY.replace('"IMPORTS"]', f'"IMPORTS"] + "-{name}"')
        lab.library.with_name(f"{name}.py").write_text(library + code)
    lab.write(
        f"""
@step
def work(out: Output, number: int = 0) -> Metrics:
    import heavy, {", ".join(names)}
    return told()
def steps():
    return [work(0), work(1)]
"""
    )
    warm = lab.run("warm")
    assert {*lab.importers} == {said["parent"] for said in warm}  # heavy leaves nothing behind
    for name in names:
        assert {said["pid"] for said in warm} < {*lab.importers_of(name)}
    fresh = lab.run("fresh")
    for name in ("discovered", "digest"):
        assert [said[name] for said in warm] == [said[name] for said in fresh]


def test_a_step_that_asks_for_other_threads_gets_a_fresh_interpreter(lab: Lab) -> None:
    lab.write(
        PLAIN.replace("told(", "told(threads=os.environ['OMP_NUM_THREADS'], ")
        + """
def steps():
    return [work(0), work(1), work(2).on(cpus=1)]
"""
    )
    made = lab.run()
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is only one processor to ask for")
    assert [said["threads"] == "1" for said in made] == [False, False, True]
    assert made[2]["pid"] in lab.importers
    assert made[1]["pid"] not in lab.importers


def test_a_library_that_is_replaced_meanwhile_is_imported_anew(lab: Lab) -> None:
    lab.write(
        f"""
LIBRARY = Path({str(lab.library / "part.py")!r})
@step
def work(out: Output, number: int = 0) -> Metrics:
    import heavy
    seen = heavy.part.VALUE
    new = LIBRARY.with_suffix(".new")
    # Of another size: Python takes old byte code for a file of the same second and size.
    new.write_text("VALUE = 8  # newer\\n")
    new.replace(LIBRARY)
    return told(seen=seen)
def steps():
    return [work(0), work(1), work(2)]
"""
    )
    assert [said["seen"] for said in lab.run()] == [7, 8, 8]


ENDS = {
    "status": "os._exit(3)",
    "signal": "os.kill(os.getpid(), signal.SIGKILL)",
    "error": "raise ValueError('no such row')",
    "request": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
}


def test_a_worker_that_ends_badly_is_reported_as_a_fresh_one(lab: Lab) -> None:
    steps = "".join(
        f"""
@step
def end_{name}(out: Output) -> Metrics:
    import heavy
    print("it has begun", os.getppid(), flush=True)
    {end}
"""
        for name, end in ENDS.items()
    )
    called = ", ".join(f"end_{name}()" for name in ENDS)
    lab.write(f"{steps}\ndef steps():\n    return [{called}]\n")

    def said(way: str) -> list[str]:
        told = ("killed by", "ended with status", "no such row", "told to leave", "failed")
        lines = lab.fail(way).replace(f"store-{way}", "").splitlines()
        return sorted(line.strip() for line in lines if any(word in line for word in told))

    warm = said("warm")
    assert len(lab.importers) == 1
    for name in ENDS:
        assert any(f"end_{name}" in line for line in warm), warm
    fresh = said("fresh")
    assert [line.partition("(")[0] for line in warm] == [line.partition("(")[0] for line in fresh]
    assert lab.logs("warm").count("it has begun") == len(ENDS)


def test_what_a_step_leaves_running_is_ended_with_it(lab: Lab) -> None:
    lab.write(
        """
@step
def work(out: Output, number: int = 0) -> Metrics:
    import heavy
    return told(left=subprocess.Popen(["sleep", "600"]).pid)
"""
    )
    for said in lab.run():
        wait_until(lambda pid=said["left"]: not _is_alive(pid))


WAITING = """
@step
def work(out: Output, number: int = 0) -> Metrics:
    import heavy
    (Path(os.environ["IMPORTS"]).parent / f"begun-{number}").write_text(str(os.getpid()))
    while not Path(os.environ["IMPORTS"]).with_name("go").exists():
        time.sleep(0.05)
    return told()
def steps():
    return [work(0), work(1)]
"""


def test_workers_go_on_when_their_parent_is_killed(lab: Lab) -> None:
    lab.write(WAITING)
    process = lab.start()
    _begun(lab, 0)
    (parent,) = lab.importers
    os.kill(parent, signal.SIGKILL)
    lab.imports.with_name("go").touch()
    output = process.communicate()
    assert process.returncode == 0, output
    first, second = json.loads(output.partition("RESULT ")[2])
    assert first["pid"] == _begun(lab, 0)
    assert lab.importers == [parent, second["pid"]]


def test_workers_and_their_parent_end_when_the_driver_is_killed(lab: Lab) -> None:
    lab.write(WAITING)
    process = lab.start()
    worker = _begun(lab, 0)
    process.kill()
    process.communicate()
    for pid in (worker, *lab.importers):
        wait_until(lambda pid=pid: not _is_alive(pid))


def _begun(lab: Lab, number: int) -> int:
    """The worker of a step that waits."""
    path = lab.imports.with_name(f"begun-{number}")
    wait_until(lambda: path.exists() and path.read_text() != "")
    return int(path.read_text())


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
