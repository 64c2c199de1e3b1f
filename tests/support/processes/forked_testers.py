"""Processes of ``pytest-xdist`` that are forked from one that has imported the heavy libraries.

A process that collects all tests imports torch, transformers and much else: most of its work before
its first test. One process does this for all of them. Nothing of this repository is imported in it,
and no library that starts threads there (as pandas and pyarrow do), since a fork would lack them.

``pytest-xdist`` starts a process by a command and talks to it by standard input and output. The
command that it is given here hands both to the process that has the libraries, which forks.

A process that tests starts others too, by a server of ``multiprocessing``'s (``fresh_processes``).
Before it does anything else, it forks one that waits to become that server.
"""

import gc
import importlib
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from multiprocessing import util
from pathlib import Path
from typing import NoReturn

LIBRARIES = (
    "torch._dynamo", "torch.nn.attention.varlen", "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "peft", "scipy.stats", "sympy", "requests", "jax", "jax.experimental.pallas.tpu", "openai",
    "luigi", "hypothesis.stateful", "hydra", "optuna", "IPython.core.interactiveshell",
    "typer.testing", "igraph",
)  # fmt: skip
"""What nearly every process imports; one that is not installed is passed over."""

_PARENT = "import sys; sys.path[:0] = [sys.argv.pop()]; import forked_testers as f; f.serve()"
_HANDED = 3
"""Standard input, output and error."""
_FEW = 8
"""More files than any version of ``multiprocessing`` hands to its server."""


def command() -> str:
    """Starts the parent, which ends with this process; what to call in place of an interpreter."""
    folder = tempfile.TemporaryDirectory()  # nobody else may enter it
    server, path = socket.socket(socket.AF_UNIX), f"{folder.name}/testers"
    server.bind(path)
    server.listen()
    with server:
        parent = subprocess.Popen(
            [sys.executable, "-u", "-c", _PARENT, str(server.fileno()), str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            pass_fds=(server.fileno(),),
        )
    _kept.append((parent, folder))
    return shlex.join([sys.executable, "-S", "-E", __file__, path])


_kept: list[tuple[subprocess.Popen[bytes], tempfile.TemporaryDirectory[str]]] = []
"""Until this process ends: then the parent's standard input is closed, and the folder removed."""


def serve() -> None:
    """Forks for each caller, until standard input ends; returns in a fork once it has worked."""
    gc.disable()  # which a fork undoes when it has collected its tests
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # a collection in a fork would copy all of this
    gc.get_freeze_count = lambda: 1  # which would count all of this, in each fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the forks
    server = socket.socket(fileno=int(sys.argv.pop()))
    poll = select.poll()
    for waited in (sys.stdin, server):
        poll.register(waited, select.POLLIN)
    callers: dict[int, tuple[socket.socket, int]] = {}
    ended: dict[int, int] = {}
    while True:
        for ready, _ in poll.poll():
            if ready == sys.stdin.fileno():
                return
            if ready == server.fileno():
                caller, _ = server.accept()
                _, files, _, _ = socket.recv_fds(caller, 1, _HANDED)
                if (pid := os.fork()) == 0:
                    server.close()
                    for one, _ in callers.values():
                        one.close()
                    for process in ended:
                        os.close(process)
                    return _work(caller, files)
                for file in files:
                    os.close(file)
                process = os.pidfd_open(pid)
                callers[caller.fileno()], ended[process] = (caller, pid), caller.fileno()
                poll.register(caller, 0)  # tells of its end alone
                poll.register(process, select.POLLIN)
            elif ready in ended:
                caller, pid = callers.pop(ended.pop(ready))
                os.waitpid(pid, 0)
                with suppress(KeyError):
                    poll.unregister(caller)
                poll.unregister(ready)
                os.close(ready)
                caller.close()
            elif ready in callers:  # the caller was killed
                os.kill(callers[ready][1], signal.SIGKILL)
                poll.unregister(ready)


def _work(caller: socket.socket, files: list[int]) -> None:
    """Does what the interpreter would do that the caller stands for."""
    caller.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    _keep_a_server_ready()
    exec(eval(sys.stdin.readline()), vars(sys.modules["__main__"]))


def _keep_a_server_ready() -> None:
    """Lets ``multiprocessing`` have its server of forks from here, with the libraries, in place of
    a new interpreter that imports them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (waiting := os.fork()) == 0:
        ours.close()
        _become_a_server(theirs)
    theirs.close()
    start = util.spawnv_passfds

    def spawn(path: bytes, words: Sequence[str], passed: Sequence[int]) -> int:
        if not words[-1].startswith("from multiprocessing.forkserver import") or ours.fileno() < 0:
            return start(path, words, passed)  # also one that follows a server that has ended
        order = json.dumps({"code": words[-1], "path": sys.path, "files": list(passed)})
        with ours:
            socket.send_fds(ours, [order.encode()], list(passed))
        return waiting

    util.spawnv_passfds = spawn


def _become_a_server(orders: socket.socket) -> NoReturn:
    try:
        with open(os.devnull, "r+b") as nothing:
            for number in (0, 1):  # how the process that tests talks to pytest-xdist
                os.dup2(nothing.fileno(), number)
        with orders:
            data, files, _, _ = socket.recv_fds(orders, 2**20, _FEW)
        if data:
            order = json.loads(data)
            above = max(order["files"]) + 1  # none is where another belongs
            copies = [fcntl(file, F_DUPFD_CLOEXEC, above) for file in files]
            for number, copy in zip(order["files"], copies, strict=True):
                os.dup2(copy, number)
                os.close(copy)
            sys.path[:] = order["path"]
            gc.enable()
            exec(order["code"], {})
    finally:
        os._exit(0)


def _call(path: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as parent:
        parent.connect(path)
        socket.send_fds(parent, [b"!"], list(range(_HANDED)))
        parent.recv(1)


if __name__ == "__main__":
    _call(sys.argv[1])
