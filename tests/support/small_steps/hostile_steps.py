"""Steps for tests of stores that lie, of secrets and of steps that end in odd ways."""

import os
import shutil
import signal
import subprocess
import sys
import time

import fsspec

from pipeline import Artifact, File, Output, step


@step(version="1")
def write(out: Output, text: str = "made") -> dict:
    """Two files, one of them in a folder."""
    (out.path / "part").mkdir()
    (out.path / "a.txt").write_text(text)
    (out.path / "part" / "b.txt").write_text(text)
    (out.path / "empty").mkdir()
    return {"letters": len(text)}


@step(version="1")
def look_around(out: Output, source: Artifact) -> dict:
    """The names of everything in its input."""
    found = sorted(str(path.relative_to(source.path)) for path in source.path.rglob("*"))
    (out.path / "names.txt").write_text("\n".join(found))
    return {"names": found}


@step(version="1")
def end(out: Output, journal: str, how: str) -> dict:
    """Ends without a result."""
    with open(journal, "a") as file:
        file.write("tried\n")
    match how:
        case "exit":
            sys.exit(75)
        case "at once":
            os._exit(75)
        case "kill":
            os.kill(os.getpid(), signal.SIGTERM)
        case "raise":
            signal.raise_signal(signal.SIGTERM)
        case "child":
            # told when it has been started: a signal from before may be anybody's
            script = f"read go; kill -TERM {os.getpid()}; sleep 600"
            subprocess.run(["sh", "-c", script], input=b"go\n", check=True)
    time.sleep(600)
    return {}


@step(version="1")
def lose(out: Output, store: str) -> dict:
    """Deletes the store in which it runs."""
    shutil.rmtree(store)
    (out.path / "a.txt").write_text("made")
    return {}


@step(version="1")
def start_program(out: Output) -> dict:
    """A program that is asked to end does so; one that blocks the signal would reach its end."""
    return {"status": subprocess.run(["sh", "-c", "kill $$"]).returncode}


@step(version="1")
def fetch(out: Output, source: File, fails: bool = False) -> dict:
    """What is at a URL; says that it reads it, and where."""
    print("reading", source.url, flush=True)
    if fails:
        raise ValueError(f"cannot use {source.url}")
    with fsspec.open(source.url, "rb") as file:
        (out.path / "content").write_bytes(file.read())  # pyright: ignore[reportAttributeAccessIssue]
    return {}


@step(version="1")
def count(out: Output, number: int, seconds: float = 0.0) -> dict:
    time.sleep(seconds)
    return {"number": number}
