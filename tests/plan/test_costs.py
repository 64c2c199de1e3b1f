"""What a plan and a cached rerun cost, counted and not timed: lines, imports, processes."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import blake3
import pytest
from places import REPOSITORY
from rich.console import Console

from pipeline import Artifact, Output, Step, Store, run, step
from pipeline.dag.files import FileEntry
from pipeline.plan import variants
from pipeline.plan.planning import topological
from pipeline.plan.resolver import Resolver
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import InputEntry, Manifest, files_digest

STEPS = 64
"""More than are listed one by one in a plan."""
TWICE = 2.5
"""What twice as many steps may cost. Where every step looks at all others, it is about four."""
HEAVY = {
    "datasets", "gcsfs", "igraph", "luigi", "matplotlib", "numpy", "pandas", "pyarrow", "ray",
    "torch", "transformers",
}  # fmt: skip


@step(version="1")
def link(
    out: Output, number: int, inputs: Sequence[Artifact], settings: dict | None = None
) -> dict:
    return {}


@step(version="1")
def finish(out: Output, inputs: Sequence[Artifact]) -> dict:
    return {}


def grid(steps: int) -> dict[str, Step]:
    return {f"r{i}": finish([link(i, [])]) for i in range(steps // 2)}


def chain(steps: int) -> dict[str, Step]:
    made = link(0, [])
    for number in range(1, steps):
        made = link(number, [made])
    return {"end": made}


def fan_in(steps: int) -> dict[str, Step]:
    links = [link(number, []) for number in range(steps)]
    return {"one": finish(links), "other": finish([*reversed(links)])}


def settings_of_their_own(steps: int) -> dict[str, Step]:
    return {f"r{i}": link(i % 2, [], {f"key{i}": i}) for i in range(steps)}


Shape = Callable[[int], dict[str, Step]]
SHAPES = (grid, chain, fan_in, settings_of_their_own)


def lines(action: Callable[[], Any]) -> int:
    """How many lines an action executes; each turn of a loop counts, also of one within a line."""
    count = 0

    def trace(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def require_linear(cost: Callable[[int], int]) -> None:
    cost(2)  # what is imported or worked out once
    few, many = cost(STEPS), cost(2 * STEPS)
    assert many < TWICE * few, (few, many)


def make_all(roots: dict[str, Step], store: Store) -> None:
    """Commit every step as a run would, and start no worker."""
    store.prepare()
    catalog = Catalog(store)
    resolver = Resolver(catalog)
    for needed in topological(roots.values()):
        inputs = resolver.inputs(needed)
        resolved = resolver.key_and_recipe(needed)
        assert resolved is not None
        attempt = store.new_attempt(needed.name, resolved[0])
        data = needed.fingerprint.encode()
        store.objects.replace(f"{attempt}/content/value.json", data)
        files = {"value.json": FileEntry(len(data), blake3.blake3(data).hexdigest())}
        entries = tuple(InputEntry(made.step, made.key, None, made.digest) for _, made in inputs)
        manifest = Manifest(
            needed.name, resolved[0], attempt.rpartition("/")[2], files_digest(files), resolved[1],
            entries, files, {}, 1.0,
        )  # fmt: skip
        catalog.add(store.commit(manifest))
    catalog.save()


@pytest.mark.parametrize("shape", SHAPES)
def test_building_a_dag_costs_the_same_for_each_step(shape: Shape) -> None:
    require_linear(lambda steps: lines(lambda: shape(steps)))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cached_rerun_costs_the_same_for_each_step(shape: Shape, tmp_path: Path) -> None:
    def cost(steps: int) -> int:
        roots, store = shape(steps), Store(str(tmp_path / f"{steps}"))
        if shape is grid:  # results have a column each, and a table is as wide as the terminal
            roots = {"end": finish([*roots.values()])}
        make_all(roots, store)
        console = Console(file=io.StringIO(), width=160)
        return lines(lambda: run(roots, store, console=console, verbosity=-1))

    require_linear(cost)


@pytest.mark.parametrize("shape", SHAPES)
def test_naming_what_tells_steps_apart_costs_the_same_for_each(shape: Shape) -> None:
    def cost(steps: int) -> int:
        nodes = variants.of_steps(topological(shape(steps).values()))
        return lines(lambda: variants.names(nodes))

    require_linear(cost)


@pytest.mark.parametrize("shape", SHAPES)
def test_looking_up_a_result_afresh_costs_the_same_for_each_step_above(
    shape: Shape, tmp_path: Path
) -> None:
    def cost(steps: int) -> int:
        roots, store = shape(steps), Store(str(tmp_path / f"{steps}"))
        make_all(roots, store)
        resolver = Resolver(Catalog(store))
        return lines(lambda: resolver.artifacts(roots.values()))

    require_linear(cost)


MODULES_AFTER = """
import importlib, json, sys
names = sys.argv[1:]
print(json.dumps({n: importlib.import_module(n) and sorted(sys.modules) for n in names}))
"""


def test_a_script_that_plans_imports_nothing_heavy() -> None:
    """One process imports all of them: the first that imports something heavy is blamed first."""
    folder = REPOSITORY / "experiments"
    done = subprocess.run(
        [sys.executable, "-c", MODULES_AFTER, *sorted(p.stem for p in folder.glob("*.py"))],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {script: HEAVY & set(modules) for script, modules in json.loads(done.stdout).items()}
    assert not any(heavy.values()), heavy
