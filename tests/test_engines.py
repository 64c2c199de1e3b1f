"""One experiment on every engine, with a bucket between the machines: the same keys, the same
bytes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_steps import lines
from rich.console import Console
from toy_steps import Times, add, journal_lines, multiply, numbers, slow_count

from benchmarks import ray_cluster, slurm_cluster
from pipeline import File, Step, Store, run
from pipeline.launchers.config import LauncherConfig, RayConfig, SlurmConfig

ENGINES = {"slurm": slurm_cluster.why_not(), "ray": ray_cluster.why_not()}


@contextlib.contextmanager
def engine(kind: str, folder: Path) -> Iterator[LauncherConfig]:
    if kind == "slurm":
        with pytest.MonkeyPatch.context() as patch, slurm_cluster.slurm_cluster() as cluster:
            for name, value in cluster.environment.items():
                patch.setenv(name, value)
            slurm = SlurmConfig(folder=str(folder / "slurm"), poll_seconds=1.0)
            yield LauncherConfig(use=["slurm"], slurm=slurm)
    else:
        bucket = {n: v for n, v in os.environ.items() if n.startswith(("FSSPEC_", "GCSFS_"))}
        with ray_cluster.ray_cluster() as cluster:
            ray = RayConfig(address=cluster.address, poll_seconds=1.0, env=bucket)
            yield LauncherConfig(use=["ray"], ray=ray)


def roots(source: Path, journal: str) -> dict[str, Step]:
    values = numbers(File(str(source)), journal)
    products = [multiply(values["train"], Times(factor), journal) for factor in (2, 3)]
    return {"sum": add(products, journal), "count": slow_count(3, journal, 0.01)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_and_a_bucket_change_no_key_and_no_byte(
    gcs_bucket: str, kind: str, tmp_path: Path, console: Console
) -> None:
    if ENGINES[kind]:
        pytest.skip(ENGINES[kind])
    source, journal = tmp_path / "numbers.txt", str(tmp_path / "journal")
    source.write_text("1 2 3 4")
    store = Store(f"{gcs_bucket}/{os.urandom(4).hex()}")
    with engine(kind, tmp_path) as launcher:
        there = run(roots(source, journal), store, 4, console, launcher=launcher)
    assert len([line for line in journal_lines(journal) if not line.startswith("count")]) == 5
    here = run(roots(source, journal), str(tmp_path / "store"), console=console)
    assert {n: (m.key, m.digest) for n, m in there.items()} == {
        name: (made.key, made.digest) for name, made in here.items()
    }
    log = store.read(f"{store.attempt_path(there['count'])}/log.txt")
    assert log is not None
    assert log.startswith(f"[{kind} job".encode())
    before = lines(journal)
    run(roots(source, journal), store, console=console)
    assert lines(journal) == before
