"""What Temper makes of a small project: its key, what a worker observes, and what changed of it.

Each question is answered in a process of its own, see ``interpreter.py``.
"""

import dataclasses
import importlib
import json
import os
import tempfile
import traceback
from pathlib import Path
from typing import Any

from pipeline import TemperError
from pipeline.code import closure
from pipeline.dag.canonical import hash_json, identity, portable, resolve_reference, restore
from pipeline.observed.discovery import Home, Present, discover
from pipeline.observed.hook import unobserved
from pipeline.observed.observation import Observation
from pipeline.observed.rules import Rules
from pipeline.observed.snapshot import Snapshot
from pipeline.references import reference_to
from pipeline.store.manifest import Discovered

Answer = dict[str, Any]


def answer(folder: str, ask: str = "key", **options: Any) -> Answer:
    questions = {"key": key, "modules": keys_of_modules, "observe": observe, "changes": changes}
    try:
        return questions[ask](folder, **options)
    except TemperError as error:
        return {"refused": str(error)}
    except BaseException as error:
        return {
            "error": f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc(limit=-3),
        }


def key(folder: str) -> Answer:
    """The key of the step ``train`` with the arguments that the experiment gives it."""
    steps = importlib.import_module("steps")
    arguments: dict[str, Any] = {}
    if (Path(folder) / "experiment.py").exists():
        arguments = dict(importlib.import_module("experiment").arguments())
    types: set[type] = set()
    known = identity(arguments, "arguments", types=types, home="steps")
    code = closure(getattr(steps.train, "function", steps.train), types)
    return {
        "key": hash_json({"code": code.digest, "arguments": known}),
        "units": dict(code.units),
        "arguments": portable(arguments, "arguments"),
        "types": sorted(map(reference_to, types)),
    }


def keys_of_modules(folder: str, modules: list[str]) -> Answer:
    """The key of ``train`` in each of these modules."""
    return {"keys": [closure(importlib.import_module(m).train).digest for m in modules]}


def observe(folder: str, arguments: Any, types: list[str]) -> Answer:
    """What a worker observes that is in no key, when it runs the step."""
    with tempfile.TemporaryDirectory() as written:
        observation = Observation.begin(Rules.of("steps", [folder], [written]))
        snapshot = Snapshot(observation)
        snapshot.install()
        train = resolve_reference("steps:train")
        function = getattr(train, "function", train)
        with unobserved():
            code = closure(function, frozenset(map(resolve_reference, types)))
        snapshot.adopt(code.sources)
        function(_Out(written), **restore(arguments, lambda _: None))
        os.chdir(folder)
        observation.end()
        return {"discovered": dataclasses.asdict(discover(observation, _home(folder), code))}


def changes(folder: str, discovered: Any) -> Answer:
    """What of that is not what it was."""
    found = Present().changes(_home(folder), Discovered.from_dict(discovered))
    return {"changes": json.loads(json.dumps(found))}


def _home(folder: str) -> Home:
    return Home.of("steps", f"{folder}/steps.py")


class _Out:
    """What a step writes into."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def path(self, name: str) -> Path:
        return self.folder / name
