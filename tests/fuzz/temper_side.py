"""What Temper makes of a small project: the key of its step, the trace that a worker records when
the step runs, and what of a trace is not the same today.

Each question is answered in a process of its own, see ``interpreter.py``.
"""

import dataclasses
import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from pipeline import TemperError
from pipeline.dag.canonical import hash_json, identity, portable, resolve_reference, restore
from pipeline.observed.discovery import Home, Present, discover
from pipeline.observed.observation import Observation
from pipeline.observed.path_filter import Rules
from pipeline.observed.scratch_dependencies import NO_EARLIER
from pipeline.observed.snapshot import Snapshot
from pipeline.store.manifest import Discovered

Answer = dict[str, Any]


def answer(folder: str, ask: str, **options: Any) -> Answer:
    questions = {"key": key, "trace": trace, "changes": changes}
    try:
        return questions[ask](folder, **options)
    except TemperError as error:
        return {"refused": str(error)}
    except BaseException as error:
        return {"failed": f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"}


def key(folder: str) -> Answer:
    """What is in the key of the step ``train``, with the arguments that the experiment gives it."""
    arguments: dict[str, Any] = {}
    if (Path(folder) / "experiment.py").exists():
        importlib.import_module("steps")
        arguments = dict(importlib.import_module("experiment").arguments())
    known = identity(arguments, "arguments", home="steps")
    return {"key": hash_json(known), "arguments": portable(arguments, "arguments")}


def trace(folder: str, arguments: Any) -> Answer:
    """The trace of the step: this process is its worker."""
    with tempfile.TemporaryDirectory() as written:
        observation = Observation.begin(Rules.of("steps", [folder], [written]))
        try:
            snapshot = Snapshot(observation)
            snapshot.install()
            train = resolve_reference("steps:train")
            snapshot.take()
            function = getattr(train, "function", train)
            path = [*sys.path]
            function(_Out(written), **restore(arguments, lambda _: None))
            os.chdir(folder)
            sys.path[:] = path
            observation.end()
            return {"trace": dataclasses.asdict(discover(observation, _home(folder), NO_EARLIER))}
        finally:
            Snapshot.uninstall()
            observation.forget()


def changes(folder: str, trace: Any) -> Answer:
    """What of a trace is not what it was."""
    return {"changes": Present().changes(_home(folder), Discovered.from_dict(trace))}


def _home(folder: str) -> Home:
    return Home.of("steps", f"{folder}/steps.py")


class _Out:
    """What a step writes into."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def path(self, name: str) -> Path:
        return self.folder / name
