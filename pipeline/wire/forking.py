"""The protocol between a launcher and the parent of its warm workers.

A launcher starts the parent with one end of a socket. It sends each order over this socket with two
open files: another socket, for answers about this worker only, and the worker's log. So any process
of a driver can send orders, and the kernel tells each side when the other is gone. Answers are:

- none, and the socket is closed: this parent does not start the worker;
- ``Started``, from the worker itself, once it leads its own session, with a descriptor of its
  process. It then waits for a confirmation, and ends if the socket is closed instead;
- ``Status``, from the parent, once the worker has ended.
"""

import json
import os
import select
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass

_MOST_BYTES = 2**20
_GO = b"!"
Pair = tuple[socket.socket, socket.socket]


@dataclass(frozen=True)
class Order:
    """A request for one worker.

    Attributes:
        function: ``module:name`` of the step function.
        environment: variables that are added to the parent's environment.
    """

    function: str
    spec_url: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Started:
    """A worker runs. ``descriptor`` refers to its process, even after its parent has ended."""

    pid: int
    descriptor: int


@dataclass(frozen=True)
class Status:
    """A worker has ended, with this exit status, or minus the number of the signal."""

    status: int


def is_possible() -> bool:
    """Whether this system supports forked workers; it needs Linux's pidfds and ``/proc``."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return os.path.isdir("/proc/self/task")


def connected() -> Pair:
    """Two ends of a socket that preserves message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_order(control: socket.socket, order: Order, answers: socket.socket, log: int) -> None:
    """Raise `OSError` if the parent is gone, or the order is too long."""
    data = json.dumps(asdict(order)).encode()
    socket.send_fds(control, [data], [answers.fileno(), log])


def receive_order(control: socket.socket) -> tuple[Order, socket.socket, int] | None:
    """An order, the socket for answers, and its log; ``None`` once no process can send orders."""
    data, files, _, _ = socket.recv_fds(control, _MOST_BYTES, 2)
    if not data:
        return None
    answers, log = files
    return Order(**json.loads(data)), socket.socket(fileno=answers), log


def begin(answers: socket.socket) -> bool:
    """Report that this process is the worker; false if the launcher no longer wants it."""
    descriptor = os.pidfd_open(os.getpid())
    try:
        socket.send_fds(answers, [json.dumps({"pid": os.getpid()}).encode()], [descriptor])
        return answers.recv(1) == _GO
    except ConnectionError:
        return False
    finally:
        os.close(descriptor)


def send_status(answers: socket.socket, status: int) -> None:
    """Raise `OSError` if nobody waits for the status any more."""
    answers.send(json.dumps({"status": status}).encode())


def is_readable(source: "socket.socket | int", seconds: float | None) -> bool:
    """Wait until there is data to read, or a process has ended; false after a timeout. Unlike
    ``select`` this works with descriptors of any number."""
    waiting = select.poll()
    waiting.register(source, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))


def receive_answer(answers: socket.socket) -> Started | Status | None:
    """The next answer; ``None`` if there will be none. It confirms a worker that has started."""
    try:
        data, files, _, _ = socket.recv_fds(answers, _MOST_BYTES, 1)
    except ConnectionError:
        return None
    if not data:
        return None
    answer = json.loads(data)
    if not files:
        return Status(answer["status"])
    try:
        answers.send(_GO)
    except ConnectionError:  # the worker has died meanwhile
        os.close(files[0])
        return None
    return Started(answer["pid"], files[0])
