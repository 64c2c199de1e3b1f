"""Checkers that fail in every way, for the processes that judge.

Such a process imports the module of its checker and not what tests import: that would take it most
of its time.
"""

import os
import pickle
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from steps.checking.verdicts import Answered, Checker, Judgement, Verdict, judged
from steps.environments.environment import Graded


@dataclass(frozen=True)
class Scripted(Checker):
    """Does what the text says; a hang writes its process id to `journal` first."""

    name: ClassVar[str] = "scripted"

    journal: str = ""

    def check(self, answered: Answered) -> Judgement:
        match answered.text:
            case "hang":
                Path(self.journal).write_text(str(os.getpid()))
                time.sleep(3600)
            case "die":
                os._exit(7)
            case "raise":
                raise KeyError("no such thing")
            case "nothing":
                return None  # pyright: ignore[reportReturnType]
            case "fork":
                os.fork()
            case "text":
                return judged("no")  # pyright: ignore[reportArgumentType]
            case "endless":
                return Graded(Verdict.right, grade=float("nan"))
            case "unnormalised":
                return Unnormalised(Verdict.right)
            case "unrewarded":
                return Unrewarded(Verdict.right)
            case "huge":
                return Huge(Verdict.right)
        return judged(answered.text == "right")


@dataclass(frozen=True)
class Unrewarded(Judgement):
    """A verdict without a reward."""

    reward: ClassVar[None] = None  # pyright: ignore[reportIncompatibleMethodOverride]


@dataclass(frozen=True)
class Huge(Judgement):
    """A judgement with a reward that is too large for a float."""

    reward: ClassVar[int] = 10**400  # pyright: ignore[reportIncompatibleMethodOverride]


@dataclass(frozen=True)
class Unnormalised(Judgement):
    """A judgement with a reward that is no number."""

    reward: ClassVar[float] = float("nan")  # pyright: ignore[reportIncompatibleMethodOverride]


@dataclass(frozen=True)
class Disturbing(Checker):
    """Does to the pipe through which its verdicts go what the text says. Before a process leaves it
    open, and says no more, its id is in `journal`."""

    name: ClassVar[str] = "disturbing"

    journal: str = ""

    def check(self, answered: Answered) -> Judgement:
        sockets = [
            int(fd.name)
            for fd in Path("/proc/self/fd").iterdir()
            if fd.is_symlink() and os.readlink(fd).startswith("socket:")
        ]
        written = {
            "garbage": b"x" * 10_000,
            "a few bytes": b"\0\0\0\5hello",
            "a part": struct.pack("!i", 100) + b"abc",
            "a huge size": struct.pack("!iQ", -1, 2**62),
            "an object": struct.pack("!i", len(pickle.dumps(7))) + pickle.dumps(7),
        }
        for fd in sockets if answered.text in written else ():
            os.write(fd, written[answered.text])
        if answered.text == "close":
            for fd in sockets:
                os.close(fd)
        if answered.text == "orphan" and (left := os.fork()):
            Path(self.journal).write_text(str(left))
            os._exit(3)
        if answered.text == "a part":
            Path(self.journal).write_text(str(os.getpid()))
        if answered.text in {"a part", "close", "orphan"}:
            time.sleep(3600)
        return judged(answered.text == "right")
