"""Real ranks and commands for tests, cheap to start: see :mod:`fresh_processes`."""

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import fresh_processes


def run_ranks(work: Callable[..., None], *arguments: Any, count: int = 2) -> list[int]:
    """Calls `work` in `count` processes, with the environment that torchrun gives its ranks; their
    exit codes. It must be a function of a module."""
    port = _free_port()
    processes = [
        fresh_processes.start(_as_rank, rank, count, port, work, arguments) for rank in range(count)
    ]
    for process in processes:
        process.join()
    return [process.exitcode or 0 for process in processes]


def start_command(
    command: Callable[..., None],
    words: Sequence[str],
    streams: Sequence[int],
    environment: Mapping[str, str],
) -> BaseProcess:
    """Begins a command of Temper's in a process and a session of its own, as from a shell, with
    these three descriptors as its standard streams."""
    passed = [Connection(os.dup(stream)) for stream in streams]
    return fresh_processes.start(_as_command, command, list(words), passed, environment)


def _as_command(
    command: Callable[..., None],
    words: list[str],
    streams: list[Connection],
    environment: Mapping[str, str],
) -> None:
    import typer

    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.update(environment)
    sys.argv = [command.__name__, *words]
    typer.run(command)


def _as_rank(rank: int, count: int, port: int, work: Callable[..., None], arguments: Any) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    work(*arguments)


def _free_port() -> int:
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
