"""What a program ends with: a sentence for Ctrl-C at any moment, nothing where nobody reads."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner
from waiting import wait_until

from pipeline.cli import app

STOPPED = "stopped; run the same command again to go on\n"

INTERRUPT = """
import os, signal, sys

def interrupt(event, arguments):
    if event == "import" and arguments[0] == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.addaudithook(interrupt)
"""
"""Sends this process a Ctrl-C when it imports the module that its first argument names."""

INTERRUPTED = f"""{INTERRUPT}
from pipeline import run
from mistaken_steps import wait_until_told

if __name__ == "__main__":
    run([wait_until_told(sys.argv[2])], store="store")
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(INTERRUPTED)
    command = [sys.executable, "script.py", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(autouse=True)
def steps_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))


@pytest.mark.parametrize("module", ["pipeline.uncaught.excepthook", "pipeline.dag.step", "luigi"])
def test_ctrl_c_while_something_is_imported_is_no_traceback(module: str, tmp_path: Path) -> None:
    driver = start(tmp_path, module, str(tmp_path / "begun"))
    _, told = driver.communicate(timeout=300)
    assert driver.returncode != 0
    assert told == STOPPED
    assert not (tmp_path / "begun").exists()


def test_ctrl_c_in_the_first_moments_of_a_command_ends_it_as_shells_expect(tmp_path: Path) -> None:
    command = f"{INTERRUPT}\nfrom pipeline.cli import main\nmain()"
    ran = subprocess.run(
        [sys.executable, "-c", command, "pipeline.uncaught.excepthook"],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert (ran.stderr, ran.stdout) == (STOPPED, "")
    assert ran.returncode == -signal.SIGINT  # which a shell shows as 130


def test_after_ctrl_c_neither_the_screen_nor_the_log_has_a_traceback(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    driver = start(tmp_path, "nothing", str(begun))
    wait_until(begun.exists)
    driver.send_signal(signal.SIGINT)
    shown, told = driver.communicate(timeout=300)
    assert told == STOPPED
    assert "Traceback" not in shown
    log = CliRunner().invoke(app, ["logs", "wait_until_told", "--store", str(tmp_path / "store")])
    assert "left after row 3; what is read is kept" in log.output
    assert "Traceback" not in log.output


@pytest.mark.parametrize("command", ["experiment", "temper"])
def test_a_reader_that_has_gone_is_told_nothing(
    command: str, tmp_path: Path, repository: Path
) -> None:
    experiment = [str(repository / "experiments" / "dpo_ultrafeedback.py"), "--help"]
    temper = ["-c", "from pipeline.cli import main; main()", "--help"]
    arguments = experiment if command == "experiment" else temper
    program = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    told = program.stderr.read()
    program.wait(timeout=300)
    assert told == b""
