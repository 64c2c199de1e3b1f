"""Small steps without any ML, for tests of the pipeline core. Each appends a line to a journal
outside the store when it really runs, so that a test can say what ran."""

import json
import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline import Artifact, File, Output, execution_detail, step


@step(version="1")
def only_train(out: Output, journal: str) -> dict:
    """All files lie in one part."""
    (out.path / "train").mkdir()
    _write(out.path / "train", [1, 3])
    return {}


@step(version="1")
def list_files(out: Output, values: Artifact, journal: str) -> dict:
    _note(journal, "list_files")
    names = sorted(str(p.relative_to(values.path)) for p in values.path.rglob("*.json"))
    (out.path / "names.txt").write_text(" ".join(names))
    return {"names": " ".join(names)}


@step(version="1")
def misbehave(out: Output, how: str) -> dict:
    """Ends in one of the ways in which a step must not."""
    (out.path / "half.txt").write_text("half")
    match how:
        case "link":
            (out.path / "link").symlink_to("/etc/hostname")
        case "list":
            return [1]  # type: ignore[return-value]
        case "notices":
            return {"notices": 5}
        case "nan":
            return {"loss": float("nan")}
        case "surrogate":
            return {"text": "\ud800"}
        case "remove":
            shutil.rmtree(out.path)
        case "replace":
            shutil.rmtree(out.path)
            out.path.symlink_to(out.scratch)
        case "thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
        case "exit":
            raise SystemExit(0)
        case "kill":
            os.kill(os.getpid(), 9)
        case "interrupt":
            raise KeyboardInterrupt
    return {}


@step(version="1")
def edit_own_source(out: Output, source: File, journal: str) -> dict:
    """Reads a file that somebody edits at the same time: here, the step itself."""
    path = Path(source.url)
    _write(out.path, [int(path.read_text().split()[0])])
    path.write_text("7 8 9")
    return {}


@dataclass(frozen=True)
class Times:
    factor: int = 2
    workers: int = execution_detail(1)


@step(version="1")
def numbers(out: Output, source: File, journal: str) -> dict:
    """One number a line; odd ones into ``train/``, even ones into ``test/``."""
    _note(journal, "numbers")
    values = [int(line) for line in Path(source.url).read_text().split()]
    for part, remainder in (("train", 1), ("test", 0)):
        (out.path / part).mkdir()
        _write(out.path / part, [v for v in values if v % 2 == remainder])
    return {"count": len(values)}


@step(version="1")
def multiply(out: Output, values: Artifact, config: Times, journal: str) -> dict:
    _note(journal, "multiply")
    result = [v * config.factor for v in _read(values.path)]
    _write(out.path, result)
    return {"largest": max(result, default=0)}


@step(version="1")
def parity(out: Output, values: Artifact, journal: str) -> dict:
    """Whether each value is even: often the same for different values."""
    _note(journal, "parity")
    _write(out.path, [v % 2 for v in _read(values.path)])
    return {}


@step(version="1")
def add(out: Output, terms: list, journal: str) -> dict:
    _note(journal, "add")
    total = sum(sum(_read(term.path)) for term in terms)
    _write(out.path, [total])
    return {"total": total}


@step(version="1")
def fail(out: Output, values: Artifact, journal: str) -> dict:
    _note(journal, "fail")
    (out.path / "half-written.txt").write_text("not a result")
    raise ValueError("row 3 of the input: no number; correct it and run again")


@step(version="1")
def stamp(out: Output, values: Artifact, journal: str) -> dict:
    """Never the same bytes twice, as a step that is not deterministic."""
    _note(journal, "stamp")
    _write(out.path, [time.time_ns()])
    return {}


@step(version="1", retries=2)
def flaky(out: Output, failures: int, journal: str) -> dict:
    """Fails so many times; scratch outlives each try."""
    _note(journal, "flaky")
    with open(out.scratch / "tries", "a") as tries:
        tries.write("x")
    if (out.scratch / "tries").stat().st_size <= failures:
        raise RuntimeError("not yet")
    return {}


@step(version="1")
def slow_count(out: Output, until: int, journal: str, seconds: float = 0.1) -> dict:
    """Counts in scratch, as training does with checkpoints, so that a restart goes on.

    A test can hold it at a number: see `waiting`.
    """
    from waiting import wait_while_held  # tests copy this file without that one

    _note(journal, "slow_count")
    state = out.scratch / "count.txt"
    reached = int(state.read_text()) if state.exists() else 0
    for count in range(reached + 1, until + 1):
        time.sleep(seconds)
        temporary = state.with_suffix(".new")
        temporary.write_text(str(count))
        os.replace(temporary, state)
        _note(journal, f"count {count}")
        out.progress(count, until, {"count": count})
        wait_while_held(journal, count)
    _write(out.path, [until])
    return {"until": until}


def journal_lines(journal: Path | str) -> list[str]:
    path = Path(journal)
    return path.read_text().splitlines() if path.exists() else []


def _note(journal: str, line: str) -> None:
    with open(journal, "a") as file:
        file.write(line + "\n")


def _write(folder: Path, values: list[int]) -> None:
    (folder / "values.json").write_text(json.dumps(values))


def _read(folder: Path) -> list[int]:
    return json.loads((folder / "values.json").read_text())
