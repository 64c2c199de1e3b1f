"""Steps for tests of stores that lie, of secrets and of steps that end in odd ways."""

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
