"""A program that passes tests, run in a process with limits."""

import contextlib
import inspect
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from steps.checking import sandbox
from steps.checking.programs import MARK, functions_in, program_in, read_tests
from steps.checking.verdicts import (
    Answered,
    Checker,
    Judgement,
    assertions,
    behind_thought,
    held_in,
    judged,
    no_verdict,
)
from steps.shared.checks import require, require_count


@dataclass(frozen=True)
class Code(Checker):
    """Right if the program in a text passes the tests in the row's answer.

    The program is the last code block that defines what the tests use, with the earlier blocks that
    it needs (:mod:`steps.checking.programs`). The tests run by what they are:

    - Statements such as ``assert add(2, 3) == 5``, or a list of them in JSON, run after it.
    - HumanEval's ``check(candidate)`` gets the last function of the prompt that the program
      defines, or its only function. JSON may name it: ``{"test": …, "entry_point": …}``.
    - ``unittest.TestCase`` classes run by unittest, examples behind ``>>>`` by doctest.
    - Functions ``test_…`` are called; those with parameters, marks or classes need pytest.

    The program runs as the module ``solution``, so nothing under ``if __name__ == "__main__"``
    runs; if it exits, the tests judge what it has defined. A program is wrong if an assertion
    failed. If the tests catch that and others held, as in "7 or 6", or catch any error in place of
    an assertion, there is no verdict; nor on tests that asserted nothing, use nothing of the
    program or import what is not installed.

    The program runs in a separate interpreter: without the user's environment variables, in an
    empty folder, without a network, within `seconds` and `memory_mb`, and without the right to
    write large files. This protects a machine from a model's mistakes, but not from malice: the
    program can read the user's files, and its objects may claim to equal anything. Run hostile
    programs in a container. If these limits cannot be set, there is no verdict.

    Args:
        seconds: the time limit of the program.
        memory_mb: the memory limit of the program, in MB.
        allow_network: let the program use the network. This is necessary on systems that do not
            allow a process to leave its network; otherwise there is no verdict on such systems.
    """

    name: ClassVar[str] = "code"

    seconds: float = 5.0
    memory_mb: int = 512
    allow_network: bool = False

    def __post_init__(self) -> None:
        require(self.seconds > 0, "seconds must be above 0", self.seconds)
        require_count(self, "memory_mb")

    def fault_of(self, answer: str | None) -> str:
        if answer is None or not answer.strip():
            return "the row has no tests"
        told = _tests(answer)[0]
        if told is None:
            return "the row's answer has values and no tests, so any program passes"
        lacks = read_tests(told).lacks
        return f"the row's tests {lacks}" if lacks else ""

    def check(self, answered: Answered) -> Judgement:
        if fault := self.fault_of(answered.answer):
            return no_verdict(fault)
        told_tests, entry = _tests(answered.answer or "")
        tests = read_tests(told_tests or "")
        asked = str(answered.prompt[-1].get("content", "")) if answered.prompt else ""
        names = [entry] if entry else functions_in(asked)
        uses = tests.uses | {re.split(r"\W", name)[0] for name in names}
        told = {
            "program": program_in(behind_thought(answered.text), uses),
            "tests": tests.text,
            "form": tests.form,
            "called": tests.called,
            "names": names,
            "mark": MARK,
            "passed": secrets.token_hex(),
            "seconds": self.seconds,
            "memory": self.memory_mb * 2**20,
            "network": self.allow_network,
        }
        with tempfile.TemporaryDirectory() as folder:
            return _run(told, Path(folder), self.seconds)


def _tests(answer: str) -> tuple[str | None, str]:
    """The statements of an answer, or of those in its list; None if it holds only values. And the
    function that they test, where the answer names it."""
    held = held_in(answer)
    if listed := assertions(held):
        return "\n".join(map(textwrap.dedent, listed)), ""
    if isinstance(held, Mapping) and isinstance(held.get("test"), str):
        return held["test"], str(held.get("entry_point") or "")
    return (answer if held is None else None), ""


def _run(told: dict[str, object], folder: Path, seconds: float) -> Judgement:
    work = folder / "work"
    work.mkdir()
    output, errors = folder / "output", folder / "errors"
    with contextlib.ExitStack() as stack:
        out, err = (stack.enter_context(path.open("wb")) for path in (output, errors))
        start, tell_start = os.pipe()
        started = stack.enter_context(os.fdopen(start, "rb"))
        with os.fdopen(tell_start, "wb"):
            process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-B", "-c", _SANDBOX, str(tell_start)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=work,
                env=_ENVIRONMENT,
                pass_fds=(tell_start,),
                process_group=0,
            )
        late = ""
        try:
            process.communicate(json.dumps(told).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            late = f"not done within {seconds:g} s"
        finally:  # what the program has started may still run
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        state = started.read()
    reason = late or _last_line(errors) or f"ended early, with {process.returncode}"
    if state == b"no network":
        return no_verdict("the system lets no process leave its network; set allow_network")
    if state != b"started":
        return no_verdict(f"the sandbox failed before the program began: {reason}")
    _, passed, said = output.read_bytes().rpartition(str(told["passed"]).encode())
    if late or not passed:
        return judged(False, reason)
    return no_verdict(said.decode()) if said else judged(True)


def _last_line(path: Path) -> str:
    lines = path.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A set has one order in each run, and an import of numpy takes the memory of one thread: a verdict
does not depend on a random seed or on the machine's cores."""

_SANDBOX = inspect.getsource(sandbox)
