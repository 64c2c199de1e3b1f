"""Processes in which next to nothing has happened yet.

A fork of the tests' own process may deadlock: by then JAX, torch or a client of a bucket has
started threads in it. These are forked from a server that has imported some modules and done
nothing else, and are given the environment that the test has at that moment.
"""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
"""Of it are the pipes and queues that such processes are given."""
FORK = multiprocessing.get_context("fork")
"""How such a process may start others, as a driver with several jobs does."""


def start(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Begins to call a module's function in a process of its own."""
    process = CONTEXT.Process(target=_call, args=(dict(os.environ), work, arguments))
    process.start()
    return process


def call(work: Callable[..., None], *arguments: Any) -> None:
    """Calls a module's function in a process of its own, which must end well."""
    process = start(work, *arguments)
    process.join()
    assert process.exitcode == 0


def _call(environment: dict[str, str], work: Callable[..., None], arguments: Any) -> None:
    import fsspec.config

    os.environ.clear()
    os.environ.update(environment)
    fsspec.config.set_conf_env(fsspec.config.conf)  # which took the server's at its import
    work(*arguments)
