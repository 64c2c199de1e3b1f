"""The store's promises: one winner per commit, nothing half-written is ever read."""

import errno
import multiprocessing
import os
from pathlib import Path

import fsspec
import pytest
from manifests import manifest

from pipeline import Store, TemperError
from pipeline.dag.canonical import hash_json
from pipeline.dag.files import FileEntry
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import files_digest


def _commit(root: str, attempt: str) -> str:
    return Store(root).commit(manifest(attempt)).attempt


def test_of_many_writers_one_commits_and_all_see_its_manifest(store: Store) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        attempts = [(store.root, f"attempt-{i}") for i in range(16)]
        assert len(set(pool.starmap(_commit, attempts))) == 1
    assert len(Catalog(store).history("train")) == 1


@pytest.mark.parametrize("url", ["{tmp}/store", "file://{tmp}/store", "memory://temper-test"])
def test_the_store_works_the_same_on_any_file_system(url: str, tmp_path: Path) -> None:
    store = Store(url.format(tmp=tmp_path))
    store.prepare()
    store.prepare()
    assert Catalog(store).history("train") == []
    store.commit(manifest("first"))
    assert store.commit(manifest("second")).attempt == "first"
    assert Catalog(store).latest("train", hash_json({})) == manifest("first")
    assert store.manifest("train", hash_json({})) == manifest("first")
    assert store.lost_files(manifest("first")) == ["model.bin"]
    fsspec.filesystem("memory").store.clear()


def test_a_store_of_another_layout_is_refused(store: Store) -> None:
    store.prepare()
    (Path(store.root) / "temper.json").write_text('{"layout": 99}')
    with pytest.raises(TemperError, match=r"has layout 99, this version reads 2"):
        store.prepare()


@pytest.mark.parametrize("other", ['{"version": 99}', '{"layout": "3"}', '{"layout": true}'])
def test_a_store_that_names_its_layout_otherwise_is_not_called_damaged(
    other: str, store: Store
) -> None:
    """Whoever relabelled the store of a newer version would have it read as what it is not."""
    store.prepare()
    place = Path(store.root) / "temper.json"
    place.write_text(other)
    with pytest.raises(TemperError, match=r"names no layout that this version knows") as caught:
        store.prepare()
    assert "damaged" not in str(caught.value)
    assert place.read_text() == other


def test_the_digest_is_of_content_alone() -> None:
    one, two = manifest("a"), manifest("a")
    assert one.digest == two.digest
    assert files_digest({"renamed.bin": FileEntry(3, "a")}) != one.digest


def test_a_file_of_another_user_that_may_not_be_read_is_told_with_its_owner(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(store.root).mkdir(exist_ok=True)
    monkeypatch.setattr("os.geteuid", lambda: 1 + os.getuid())
    refused = PermissionError(errno.EACCES, "Permission denied", store.root)
    told = "Permission denied; users who share a store need"
    with pytest.raises(TemperError, match=told), store.reading(store.root):
        raise refused
