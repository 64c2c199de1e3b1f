"""Real ranks for tests, cheap to start: forked from a server that has imported what is slow."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

_SLOW = [
    "peft",
    "steps.training.recipes",
    "steps.training.sharded_trainer",
    "torch._dynamo",
    "transformers.models.llama.modeling_llama",
]


def run_ranks(work: Callable[..., None], *arguments: Any, count: int = 2) -> list[int]:
    """Calls `work` in `count` processes, with the environment that torchrun gives its ranks; their
    exit codes. It must be a function of a module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_SLOW)
    port = _free_port()
    processes = [
        context.Process(target=_as_rank, args=(rank, count, port, work, arguments))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode or 0 for process in processes]


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
