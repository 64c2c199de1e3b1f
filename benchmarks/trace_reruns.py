"""How often real commits rerun steps: traces of a store against the history of this repository.

    python benchmarks/trace_reruns.py STORE [COMMITS]

For each of the last commits that touch ``steps/`` (120 by default) and for the newest artifact of
each step in STORE, it asks whether the code that counts for the artifact's trace differs between
the commit and its parent. It runs nothing.
"""

import subprocess
import sys
from collections import Counter
from functools import cache

from pipeline import Store
from pipeline.store.catalog import Catalog
from pipeline.trace.counted import Loaded, digests, seen_in
from pipeline.trace.source_parts import Source, read_source


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, check=True, text=True)
    return done.stdout


@cache
def blobs(commit: str) -> dict[str, str]:
    """The object of each Python file of a commit, by path."""
    lines = (line.split(None, 3) for line in git("ls-tree", "-r", commit).splitlines())
    return {path: blob for _, _, blob, path in lines if path.endswith(".py")}


@cache
def source(blob: str) -> Source:
    return read_source(git("cat-file", "blob", blob).encode())


@cache
def modules(commit: str) -> dict[str, tuple[str, bool]]:
    """The object of each module of a commit, by name, and whether it is a package."""
    found: dict[str, tuple[str, bool]] = {}
    for path, blob in blobs(commit).items():
        parts = path.removesuffix(".py").split("/")
        is_package = parts[-1] == "__init__"
        found[".".join(parts[:-1] if is_package else parts)] = blob, is_package
    return found


def code(commit: str, units: tuple[str, ...]) -> dict[str, str]:
    known = modules(commit)
    loaded = {
        name: Loaded(source(known[name][0]), known[name][1], ran, asked)
        for name, (ran, asked) in seen_in(units).items()
        if name in known
    }
    return digests(loaded, lambda name: name in known and not name.startswith("pipeline"))


def main(store: str, commits: int = 120) -> None:
    catalog = Catalog(Store(store))
    traces = {
        name: tuple(catalog.history(name)[-1].discovered.code) for name in catalog.store.steps()
    }
    found: Counter[str] = Counter()
    for commit in git("rev-list", f"-{commits}", "HEAD", "--", "steps").split():
        for step, units in traces.items():
            found[step] += code(commit, units) != code(f"{commit}^", units)
    for step in traces:
        print(f"{step:24} {found[step]:4} of {commits}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
