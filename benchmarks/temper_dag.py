"""The DAG of ``work.py`` as a Temper experiment: one side of ``overhead.py``.

python temper_dag.py run STORE STEPS NAMES REPORT    as an experiment runs, or finds all cached
python temper_dag.py plan STORE STEPS NAMES REPORT   the plan alone
python temper_dag.py look STORE STEPS NAMES REPORT   the last artifact alone, and so all above it
python temper_dag.py fill STORE STEPS NAMES REPORT   write all artifacts, and start no worker
python temper_dag.py count STORE STEPS NAMES REPORT  requests of a plan and a run to gs://

A last argument names another shape of ``work.py`` than the grid: ``chain``, ``fan-in``.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
from measuring import Phases  # of this checkout, also for a Temper of another
from work import SHAPES, write_value

from pipeline import Artifact, Metrics, Output, Step, Store, execution_detail, run, step
from pipeline.dag.files import FileEntry
from pipeline.plan.planning import make_plan, topological
from pipeline.plan.resolver import Resolver
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import InputEntry, Manifest, files_digest


@dataclass(frozen=True)
class Settings:
    """As many as a small step has."""

    rate: float = 1e-3
    rounds: int = 3
    kind: str = "cosine"
    workers: int = execution_detail(1)


@step
def load(out: Output, lane: int, settings: Settings, inputs: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", lane)


@step
def clean(out: Output, lane: int, settings: Settings, inputs: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", lane)


@step
def split(out: Output, lane: int, settings: Settings, inputs: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", lane)


@step
def tokenize(out: Output, lane: int, settings: Settings, inputs: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", lane)


@step
def pack(out: Output, lane: int, settings: Settings, inputs: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", lane)


@step
def train(out: Output, lane: int, settings: Settings, inputs: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", lane)


@step
def sample(out: Output, lane: int, settings: Settings, inputs: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", lane)


@step
def score(out: Output, lane: int, settings: Settings, inputs: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", lane)


@step
def evaluate(out: Output, lane: int, settings: Settings, inputs: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", lane)


@step
def collect(out: Output, ends: Sequence[Artifact]) -> Metrics:
    return write_value(out.path / "value.json", len(ends))


STAGES = (load, clean, split, tokenize, pack, train, sample, score, evaluate)


def dag(steps: int, names: int, shape: str = "grid") -> Step:
    """The last of ``steps`` steps that have ``names`` names (2 to 10)."""
    made: list[Step] = []
    *nodes, last = SHAPES[shape](steps, names)
    for node in nodes:
        inputs = [made[index] for index in node.inputs]
        made.append(STAGES[node.stage](node.lane, Settings(), inputs))
    return collect([made[index] for index in last.inputs])


def fill(root: Step, store: Store) -> None:
    """Commit the artifacts of a run, with real keys, files, manifests and index."""
    store.prepare()
    catalog = Catalog(store)
    resolver = Resolver(catalog)
    for needed in topological([root]):
        inputs = resolver.inputs(needed)
        resolved = resolver.key_and_recipe(needed)
        assert resolved is not None  # its inputs were committed before
        key, recipe = resolved
        attempt = store.new_attempt(needed.name, key)
        data = needed.fingerprint.encode()
        store.objects.replace(f"{attempt}/content/value.json", data)
        files = {"value.json": FileEntry(len(data), blake3.blake3(data).hexdigest())}
        manifest = Manifest(
            step=needed.name,
            key=key,
            attempt=attempt.rsplit("/", 1)[-1],
            digest=files_digest(files),
            recipe=recipe,
            inputs=tuple(InputEntry(made.step, made.key, None, made.digest) for _, made in inputs),
            files=files,
            metrics={"value": 1},
            seconds=1.0,
        )
        catalog.add(store.commit(manifest))
    catalog.save()


def count_requests() -> Counter[str]:
    """Counts every HTTP request to Google Cloud Storage from now on, by method."""
    import gcsfs

    counts: Counter[str] = Counter()
    send = gcsfs.GCSFileSystem._request

    async def counted(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        counts[method] += 1
        return await send(self, method, *args, **kwargs)

    gcsfs.GCSFileSystem._request = counted
    return counts


def main(mode: str, url: str, steps: str, names: str, report: str, shape: str = "grid") -> None:
    phases = Phases()
    with phases.phase("dag"):
        root = dag(int(steps), int(names), shape)
    if mode == "fill":
        fill(root, Store(url))
    elif mode == "plan":
        with phases.phase("plan"):
            plan = make_plan({"end": root}, Store(url))
        assert plan.is_complete
    elif mode == "look":
        with phases.phase("look"):
            found = Resolver(Catalog(Store(url))).artifact(root)
        assert found is not None
    elif mode == "run":
        with phases.phase("run"):
            run({"end": root}, url)
    elif mode == "count":
        counts, requests = count_requests(), {}
        make_plan({"end": root}, Store(url))
        requests["plan"] = counts.total()
        counts.clear()
        run({"end": root}, url)
        requests["run"] = counts.total()
        Path(report).write_text(json.dumps(requests))
        return
    phases.write(report)


if __name__ == "__main__":
    main(*sys.argv[1:])
