"""An interpreter that answers questions about small projects, each in a forked child of its own.

``plain`` runs the step of a project as Python runs it, with nothing of Temper in the process except
a stand-in for its decorators. ``temper`` runs it as a worker does and says what it recorded, and
what of that has changed. Both read one JSON question a line,
``{"folder": ..., "options": {...}}``, and write one JSON answer a line.

A forked child costs milliseconds where a new interpreter costs tens, and starts just as empty:
the parent never imports a project.
"""

import contextlib
import gc
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 120
"""Seconds until a child that hangs is killed."""

Answer = dict[str, Any]


def main() -> None:
    kind, root = sys.argv[1], sys.argv[2]
    answer = _prepare_plain() if kind == "plain" else _prepare_temper(root)
    gc.freeze()  # a child that collects garbage would copy all of this
    for line in sys.stdin:
        print(json.dumps(_in_child(answer, json.loads(line))), flush=True)


def _in_child(answer: Callable[..., Answer], question: Answer) -> Answer:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(LIMIT)
        _be_quiet()
        os.chdir(question["folder"])
        sys.path.insert(0, question["folder"])
        found = answer(question["folder"], **question.get("options", {}))
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps(found))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"the child ended with status {status}"}


def _be_quiet() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


# --- the plain run ----------------------------------------------------------------------------


def _prepare_plain() -> Callable[[str], Answer]:
    # What most projects use is loaded once. None of it keeps state that a project can see.
    import abc, collections, dataclasses, enum, functools, inspect, logging  # noqa: E401, F401, I001
    import operator, pkgutil, random, traceback, typing, warnings  # noqa: E401, F401

    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401
        import pydantic  # noqa: F401
    sys.dont_write_bytecode = True
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    sys.modules["pipeline"] = _stand_in()
    return _plain


def _stand_in() -> types.ModuleType:
    import dataclasses

    def step(function: Any = None, **_: Any) -> Any:
        return (lambda inner: inner) if function is None else function

    module: Any = types.ModuleType("pipeline")
    module.step = step
    module.execution_detail = lambda default: dataclasses.field(default=default)
    module.added_field = lambda default, *, before: dataclasses.field(default=default)
    return module


class _Out:
    """What a step writes into."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def path(self, name: str) -> Path:
        return self.folder / name


def _plain(folder: str) -> Answer:
    """What the step returns and writes; only the kind of an error counts, not its text."""
    with tempfile.TemporaryDirectory() as written:
        try:
            steps = importlib.import_module("steps")
            returned = steps.train(_Out(written), **_arguments(folder))
            files = {
                str(file.relative_to(written)): file.read_text("latin-1")
                for file in sorted(Path(written).rglob("*"))
                if file.is_file()
            }
        except BaseException as error:  # whatever a project raises is an answer
            return {"raised": type(error).__name__, "text": str(error)[:300]}
    text = f"{_shown(returned)} {files or ''}".strip()
    text = re.sub(r" at 0x[0-9a-f]+", " at 0x", text)
    return {"result": text.replace(folder, "FOLDER")}


def _arguments(folder: str) -> dict[str, Any]:
    if not (Path(folder) / "experiment.py").exists():
        return {}
    return dict(importlib.import_module("experiment").arguments())


def _shown(value: Any) -> str:
    """A text that tells apart values of different type, content or order."""
    kind = type(value)
    if kind is dict:
        return "{" + ", ".join(f"{_shown(k)}: {_shown(v)}" for k, v in value.items()) + "}"
    if kind in (list, tuple):
        return f"{kind.__name__}({', '.join(map(_shown, value))})"
    if kind in (set, frozenset):
        return f"{kind.__name__}({', '.join(sorted(map(_shown, value)))})"
    return repr(value) if kind.__module__ == "builtins" else f"{kind.__name__}: {value!r}"


# --- Temper -----------------------------------------------------------------------------------


def _prepare_temper(root: str) -> Callable[..., Answer]:
    here = sys.path.pop(0)
    sys.dont_write_bytecode = True
    sys.path.insert(0, here)
    sys.path.insert(0, root)
    import temper_side

    sys.path.remove(here)
    return temper_side.answer


if __name__ == "__main__":
    main()
