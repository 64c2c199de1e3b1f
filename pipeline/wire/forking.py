"""What a launcher and the parent of its warm workers say to each other.

A launcher starts the parent with one end of a socket. Each order goes over it with two open files:
another socket, for what is to be said about this worker alone, and the worker's log. So any process
of a driver can ask, and the kernel tells either side when the other is gone. Answers are:

- none, and the socket closed: there will be no worker of this parent;
- ``Started``, from the worker itself, once it leads its own session, with a descriptor of it. It
  then waits for a word, and ends if the socket is closed instead: nobody wants it any more;
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
    """One worker that is wanted.

    Attributes:
        function: ``module:name`` of the step function.
        environment: what it is to find in its environment beside the parent's.
    """

    function: str
    spec_url: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Started:
    """A worker runs. ``descriptor`` stands for it whatever becomes of its parent."""

    pid: int
    descriptor: int


@dataclass(frozen=True)
class Status:
    """A worker has ended: its exit status, or minus the number of the signal."""

    status: int


def is_possible() -> bool:
    """Whether workers can be forked and told apart here: Linux has what that takes."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return os.path.isdir("/proc/self/task")


def connected() -> Pair:
    """Two ends of a socket that keeps messages apart, and whole."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_order(control: socket.socket, order: Order, answers: socket.socket, log: int) -> None:
    """
    Raises:
        OSError: the parent is gone, or the order too long.
    """
    data = json.dumps(asdict(order)).encode()
    socket.send_fds(control, [data], [answers.fileno(), log])


def receive_order(control: socket.socket) -> tuple[Order, socket.socket, int] | None:
    """An order, where to answer it, and its log; ``None`` once nobody can give any."""
    data, files, _, _ = socket.recv_fds(control, _MOST_BYTES, 2)
    if not data:
        return None
    answers, log = files
    return Order(**json.loads(data)), socket.socket(fileno=answers), log


def begin(answers: socket.socket) -> bool:
    """Say that this process is the worker; false if it is not wanted any more."""
    descriptor = os.pidfd_open(os.getpid())
    try:
        socket.send_fds(answers, [json.dumps({"pid": os.getpid()}).encode()], [descriptor])
        return answers.recv(1) == _GO
    except ConnectionError:
        return False
    finally:
        os.close(descriptor)


def send_status(answers: socket.socket, status: int) -> None:
    """
    Raises:
        OSError: nobody waits for it any more.
    """
    answers.send(json.dumps({"status": status}).encode())


def is_readable(source: "socket.socket | int", seconds: float | None) -> bool:
    """Wait until there is something to read, or a process has ended; false after so long. Unlike
    ``select`` this takes descriptors of any number."""
    waiting = select.poll()
    waiting.register(source, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))


def receive_answer(answers: socket.socket) -> Started | Status | None:
    """The next answer; ``None`` if there will be none. A worker that has started goes on."""
    try:
        data, files, _, _ = socket.recv_fds(answers, _MOST_BYTES, 1)
    except ConnectionError:
        return None
    if not data:
        return None
    said = json.loads(data)
    if not files:
        return Status(said["status"])
    try:
        answers.send(_GO)
    except ConnectionError:  # it has died since
        os.close(files[0])
        return None
    return Started(said["pid"], files[0])
