"""Processes in which next to nothing has happened yet.

A fork of the tests' own process may deadlock: by then JAX, torch or a client of a bucket has
started threads in it. These are forked from a server that has imported some modules and done
nothing else, and are given the environment that the test has at that moment. Multiprocessing has
one such server a process, so what it imports is said here, for all tests.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from waiting import HANGS_SECONDS

from pipeline.base import processes

CONTEXT = multiprocessing.get_context("forkserver")
"""Of it are the pipes and queues that such processes are given."""
FORK = multiprocessing.get_context("fork")
"""How such a process may start others, as a driver with several jobs does."""


_LIGHT = ("pipeline.cli", "pipeline.running.luigi_engine", "forked_workers")
_HEAVY = (
    "peft", "steps.online.online_run", "steps.reward_models.reward_training",
    "steps.training.recipes", "steps.training.sharded_trainer", "torch._dynamo",
    "transformers.models.llama.modeling_llama",
)  # fmt: skip
"""Where these tests train; otherwise they cost more than they save."""


def start(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Begins to call a module's function in a process of its own."""
    process = made(work, arguments)
    process.start()
    return process


def made(
    target: Callable[..., Any], args: Sequence[Any] = (), daemon: bool | None = None
) -> BaseProcess:
    """What to start in place of a process that ``multiprocessing`` spawns."""
    CONTEXT.set_forkserver_preload([*_LIGHT, *(_HEAVY if "torch" in sys.modules else ())])
    return CONTEXT.Process(target=_call, args=(dict(os.environ), target, args), daemon=daemon)


def exit_code(work: Callable[..., None], *arguments: Any) -> int | None:
    """How a process of its own ends that calls a module's function."""
    process = start(work, *arguments)
    process.join()
    return process.exitcode


def call(work: Callable[..., None], *arguments: Any) -> None:
    """Calls a module's function in a process of its own, which must end well."""
    assert exit_code(work, *arguments) == 0


def shell(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """What ``temper WORDS`` or ``python SCRIPT WORDS`` prints. Its process is its own, as from a
    shell, but has Temper imported, and its workers are forked."""
    from forked_workers import template

    with tempfile.NamedTemporaryFile() as printed:
        about = list(words), str(folder), dict(environment), printed.name, template()
        process = start(_command, *about)
        process.join(HANGS_SECONDS)
        assert process.exitcode is not None, f"{' '.join(words)} hangs"
        return Path(printed.name).read_text("utf-8")


def _command(
    words: list[str], folder: str, environment: dict[str, str], printed: str, template: Any
) -> None:
    """Become that process."""
    import pytest
    from forked_workers import fork_workers, use

    from pipeline.cli import main

    settle(folder, environment, printed)
    called = list(words[Path(words[0]).name != "temper" :])
    sys.argv, sys.orig_argv = called, [sys.executable, *called]
    use(template)
    fork_workers(pytest.MonkeyPatch())
    if called == words:
        return main()
    sys.path.insert(0, str(Path(folder, called[0]).parent))
    runpy.run_path(called[0], run_name="__main__")
    return None


def settle(folder: str, environment: Mapping[str, str], printed: str) -> None:
    """Put this process, as a shell does, into a folder and an environment; it reads nothing and
    prints into a file."""
    for stream, target in enumerate((os.devnull, printed, printed)):
        os.dup2(os.open(target, os.O_RDWR | os.O_APPEND), stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    _begin_with(environment)
    os.chdir(folder)


def _begin_with(environment: Mapping[str, str]) -> None:
    """Make an environment that of this process' start: workers get that one."""
    os.environ.clear()
    os.environ.update(environment)
    processes.STARTED_WITH = dict(environment)


def _call(environment: dict[str, str], work: Callable[..., None], arguments: Any) -> None:
    import fsspec.config

    _begin_with(environment)
    fsspec.config.set_conf_env(fsspec.config.conf)  # which took the server's at its import
    work(*arguments)
