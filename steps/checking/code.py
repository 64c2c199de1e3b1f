"""A program that passes tests, run in a process with limits."""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from steps.checking.verdicts import (
    Answered,
    Checker,
    Judgement,
    assertions,
    held_in,
    judged,
    no_verdict,
)
from steps.shared.checks import require, require_count

_BLOCK = re.compile(r"```[ \t]*([^\n`]*)\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Code(Checker):
    """Right if the program in a text passes the tests in the row's answer.

    The program is the last code block of the text that is marked as Python's; without one, the last
    that is not marked as anything; without any, the whole text. The tests
    are Python statements such as ``assert add(2, 3) == 5``, or a list of them in JSON, which run
    after the program. Without such tests there is no verdict.

    The program runs in a separate interpreter: without the user's environment variables, in an
    empty folder, without a network, within `seconds` and `memory_mb`, and without the right to
    write large files. This protects a machine from a model's mistakes, but not from malice: the
    program can read the user's files. Run hostile programs in a container. If these limits cannot
    be set, there is no verdict.

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

    def check(self, answered: Answered) -> Judgement:
        if answered.answer is None:
            return no_verdict("the row has no tests")
        tests = _tests(answered.answer)
        if tests is None:
            return no_verdict("the row's answer has values and no tests, so any program passes")
        try:
            compile(tests, "tests", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return no_verdict(f"the row's tests are no Python: {error}")
        told = {
            "program": _program(answered.text),
            "tests": tests,
            "passed": secrets.token_hex(),
            "seconds": self.seconds,
            "memory": self.memory_mb * 2**20,
            "network": self.allow_network,
        }
        with tempfile.TemporaryDirectory() as folder:
            return _run(told, Path(folder), self.seconds)


def _tests(answer: str) -> str | None:
    """The statements of an answer, or of those in its list; None if it holds only values."""
    held = held_in(answer)
    if listed := assertions(held):
        return "\n".join(map(textwrap.dedent, listed))
    return answer if held is None else None


def _program(text: str) -> str:
    blocks: dict[bool, str] = {}
    for mark, block in _BLOCK.findall(text):
        language = mark.strip().lower()
        if language in ("", "py", "python", "python3"):
            blocks[bool(language)] = textwrap.dedent(block)  # it may be in a list
    return blocks.get(True, blocks.get(False, text))


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
    if not late and output.read_bytes().endswith(str(told["passed"]).encode()):
        return judged(True)
    return judged(False, reason)


def _last_line(path: Path) -> str:
    lines = path.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A set has one order in each run, and an import of numpy takes the memory of one thread: a verdict
does not depend on a random seed or on the machine's cores."""

_SANDBOX = """
import ctypes, json, os, resource, sys

start = int(sys.argv.pop())
told = json.load(sys.stdin)
passed, tests = told["passed"], told["tests"]
dies_with_parent = 1
ctypes.CDLL(None).prctl(dies_with_parent, 9)
if not told["network"]:
    new_user, new_network = 0x10000000, 0x40000000
    if ctypes.CDLL(None).unshare(new_user | new_network):
        os.write(start, b"no network")
        os._exit(1)
seconds = int(told["seconds"]) + 1
for limit, value in (
    (resource.RLIMIT_CPU, seconds),
    (resource.RLIMIT_AS, told["memory"]),
    (resource.RLIMIT_FSIZE, 2**24),
    (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(limit, (value, value))
space = {"__name__": "__main__"}
program = told.pop("program")
del told
os.write(start, b"started")
os.close(start)
exec(compile(program, "program", "exec"), space)
exec(compile(tests, "tests", "exec"), space)
sys.stdout.flush()
os.write(1, passed.encode())
os._exit(0)
"""
"""The script that limits its own process and then runs program and tests. A program that exits
early does not pass, because the script writes the secret word of success only after the tests. No
program can feign a failure of the sandbox, because the pipe that tells its start is closed then."""
