"""The caches of a user on disk."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.base import user_cache
from pipeline.dag.digests import file_digests


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(user_cache.FOLDER, str(tmp_path / "cache"))
    user_cache._folder.cache_clear()
    yield
    user_cache._folder.cache_clear()


def test_an_entry_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.replace", refused)
    user_cache.save(tmp_path / "kind" / "entry.json", 1)
    assert [*(tmp_path / "kind").iterdir()] == []


def test_a_damaged_entry_is_no_entry() -> None:
    user_cache.save(entry := user_cache.place("kind", b"about"), 10)
    entry.write_bytes(entry.read_bytes().replace(b"10", b"11"))
    with pytest.raises(ValueError, match="damaged"):
        user_cache.load(entry)


def test_a_user_without_a_home_has_no_cache_and_no_folder_called_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv(user_cache.FOLDER)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", str)  # as for a user whom no file of users names
    user_cache._folder.cache_clear()
    user_cache.save(entry := user_cache.place("kind", b"about"), 1)
    with pytest.raises(OSError, match="directory"):
        user_cache.load(entry)
    assert file_digests([__file__])
    assert not list(here.iterdir())


def test_entries_that_nothing_read_for_a_month_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, unused, new = (user_cache.place("kind", about) for about in (b"used", b"unused", b"new"))
    for entry in (used, unused, new):
        user_cache.save(entry, 1)
    half_written = unused.with_name("half-written.json")
    others = tmp_path / "cache" / "objects" / "ab" / "photo.json"
    others.parent.mkdir(parents=True)
    for file in (half_written, others):
        file.touch()
    long_ago = time.time() - 40 * 24 * 60 * 60
    for file in (used, unused, half_written, others):
        os.utime(file, (long_ago, long_ago))
    assert user_cache.load(used) == 1
    user_cache.forget_unused()
    assert [f.exists() for f in (used, unused, half_written)] == [True, False, False]
    assert new.exists()
    assert others.exists()

    os.utime(new, (long_ago, long_ago))
    user_cache.forget_unused()  # once a day is enough
    assert new.exists()


def test_what_another_version_of_a_reader_kept_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "reading").mkdir()
    for name in ("reader.py", "reading/words.py", "other.py"):
        (tmp_path / name).write_text("1")
    found = [user_cache.version_of("reader.py", "reading/*.py", folder=tmp_path)]
    for name in ("other.py", "reader.py", "reading/words.py"):
        (tmp_path / name).write_text("2")
        found.append(user_cache.version_of("reader.py", "reading/*.py", folder=tmp_path))
    assert found[0] == found[1]
    assert len(set(found)) == 3
