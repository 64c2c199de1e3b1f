"""Another recorder than Temper's sees nothing in the workers of the shipped steps that their traces
lack. It sees what the interpreter calls, by its profiler, and what Python opens or lists, by an
audit hook of its own. What native code opens it does not see; see ``test_native``."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from places import REPOSITORY, SUPPORT_PATH

from pipeline.trace.counted import ALL

_RECORDER = """
import inspect, json, os, sys, threading

seen, folder, root = {}, os.environ["RECORDED_IN"], os.environ["RECORDED_OF"]
os.register_at_fork(after_in_child=seen.clear)

def note(*about):
    if about not in seen:
        seen[about] = None
        file = os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, (json.dumps(about) + "\\n").encode())
        os.close(file)

def called(frame, event, _):
    code = frame.f_code
    if event != "call" or id(code) in seen:
        return
    seen[id(code)] = code
    if code.co_filename == f"{root}/pipeline/worker/attempt.py" and code.co_qualname == "main":
        note("attempt", frame.f_locals["spec_url"])
        del seen[id(code)]
    elif code.co_filename.startswith(f"{root}/steps/"):
        is_function = bool(code.co_flags & inspect.CO_NEWLOCALS)
        note("ran", code.co_filename, code.co_qualname if is_function else "")

def audited(event, arguments):
    known = "<frozen importlib", f"{root}/steps/", f"{root}/pipeline/"
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        path, frame = os.path.abspath(os.fsdecode(arguments[0])), sys._getframe(1)
        if not path.startswith(f"{root}/steps/") or path.endswith((".py", ".pyc")):
            return
        while frame and not frame.f_code.co_filename.startswith(known):
            frame = frame.f_back
        if frame and frame.f_code.co_filename.startswith(f"{root}/steps/"):
            note("read", path)  # a step's code did, not an import and not the core

def begin():
    note("process", os.getppid())
    sys.setprofile(called)
    threading.setprofile(called)

if "TEMPER_WORKER" in os.environ:
    sys.addaudithook(audited)
    os.register_at_fork(after_in_child=begin)
    if "pipeline.worker.warm" not in sys.orig_argv:
        begin()
"""
_DRIVER = """
import json, sys
from pathlib import Path
from pipeline import Store, run
from pipeline.store.catalog import Catalog
from shipped_calls import calls_of_all_steps, write_inputs

if __name__ == "__main__":
    write_inputs(Path("data"))
    calls = calls_of_all_steps(Path("data").absolute())
    calls = {name: calls[name] for name in sys.argv[1:]}
    run(calls, "store", verbosity=-1)
    catalog = Catalog(Store("store"))
    made = [m for name in catalog.store.steps() for m in catalog.history(name)]
    traces = {m.attempt: [m.step, *m.discovered.code, *m.discovered.files, *m.discovered.folders]
              for m in made if m.function.startswith("steps.")}
    Path("traces.json").write_text(json.dumps(traces))
"""
_CALLS = ("make_sums", "tokenize_texts")
"""What they need runs, too. Any names of ``calls_of_all_steps`` may stand here."""


@pytest.mark.slow
def test_what_another_recorder_sees_is_in_the_trace(tmp_path: Path) -> None:
    for name in ("recorder", "data", "recorded"):
        (tmp_path / name).mkdir()
    (tmp_path / "recorder/sitecustomize.py").write_text(_RECORDER)
    (tmp_path / "driver.py").write_text(_DRIVER)
    path = os.pathsep.join([str(tmp_path / "recorder"), str(REPOSITORY), SUPPORT_PATH])
    about = {"PYTHONPATH": path, "RECORDED_OF": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "driver.py", *_CALLS],
        cwd=tmp_path,
        env={**os.environ, **about, "RECORDED_IN": str(tmp_path / "recorded")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    traces = json.loads((tmp_path / "traces.json").read_text())
    seen = _seen(tmp_path / "recorded")
    missing = {
        f"{trace[0]} {attempt}": lacks
        for attempt, trace in traces.items()
        if (lacks := sorted(seen[attempt] - {*trace} - set(_covered(trace, seen[attempt]))))
    }
    assert not missing, json.dumps(missing, indent=1)
    assert all(any(":" in name for name in seen[attempt]) for attempt in traces)


def _seen(recorded: Path) -> dict[str, set[str]]:
    """What was seen in the processes of each attempt, by the names of traces."""
    lines = {
        file.name: [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        for file in recorded.iterdir()
    }
    parents = {p: str(at) for p, of in lines.items() for kind, at, *_ in of if kind == "process"}
    attempts = {
        process: os.path.basename(os.path.dirname(spec))
        for process, of in lines.items()
        for kind, spec, *_ in of
        if kind == "attempt"
    }
    found: dict[str, set[str]] = {attempt: set() for attempt in attempts.values()}
    for process, of in lines.items():
        above: str | None = process
        while above is not None and above not in attempts:
            above = parents.get(above)
        if above is not None:
            found[attempts[above]].update(name for about in of for name in _named(*about))
    return found


def _named(kind: str, path: str, unit: str = "") -> Iterator[str]:
    if kind == "read":
        yield os.path.relpath(path, REPOSITORY)
    if kind == "ran" and not _is_detail(path, function := unit.partition(".<locals>")[0]):
        parts = Path(path).relative_to(REPOSITORY).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        is_named = bool(function) and not function.rpartition(".")[2].startswith("<")
        yield f"{module}:{function}" if is_named else f"{module}:"


def _covered(trace: list[str], seen: set[str]) -> Iterator[str]:
    """What a trace holds under another name: modules of which something counts, and functions of
    modules that count whole."""
    modules = {name.partition(":")[0] for name in trace}
    yield from (name for name in seen if name.endswith(":") and name[:-1] in modules)
    yield from (name for name in seen if f"{name.partition(':')[0]}:{ALL}" in trace)


@cache
def _details(path: str) -> frozenset[str]:
    """The names that a module declares execution details."""
    nodes = ast.walk(ast.parse(Path(path).read_text("utf-8")))
    return frozenset(
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and any("execution_detail" in ast.unparse(d) for d in node.decorator_list)
    )


def _is_detail(path: str, function: str) -> bool:
    return not _details(path).isdisjoint(function.split("."))
