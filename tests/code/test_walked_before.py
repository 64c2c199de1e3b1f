"""A closure that was walked before is found again, and only while a walk would find the same."""

import importlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.code import closure, forget, shelf, walk
from pipeline.dag.digests import file_digests

STEP = "import importlib\nfrom APP.helpers import double\ndef train(out):\n    return double(2)\n"
HELPERS = """
from APP import extra

def double(n):
    try:
        import optional_APP
    except ImportError:
        pass
    return extra.SCALE * n
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a step that reaches two of its modules, and a cache of its own."""
    monkeypatch.setenv(shelf.FOLDER, str(tmp_path / "cache"))
    shelf._folder.cache_clear()
    monkeypatch.syspath_prepend(tmp_path / "src")
    folder = tmp_path / "src" / f"app_{secrets.token_hex(6)}"
    folder.mkdir(parents=True)
    for name, text in (
        ("__init__", ""),
        ("steps", STEP),
        ("helpers", HELPERS),
        ("extra", "SCALE = 2\n"),
    ):
        (folder / f"{name}.py").write_text(text.replace("APP", folder.name))
    (folder.parent / f"optional_{folder.name}.py").write_text("")
    yield folder
    shelf._folder.cache_clear()


def looked_up(app: Path, monkeypatch: pytest.MonkeyPatch) -> walk.Closure:
    """The closure, by a process that must not walk."""
    with monkeypatch.context() as patched:
        patched.setattr(walk, "_walk", None)
        return found(app)


def found(app: Path) -> walk.Closure:
    """The closure, by a process that has imported nothing."""
    for name in [name for name in sys.modules if name.startswith(app.name)]:
        del sys.modules[name]
    importlib.invalidate_caches()
    module = importlib.import_module(f"{app.name}.steps")
    forget()
    return closure(module.train)


def test_a_closure_is_walked_once(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found(app)
    assert looked_up(app, monkeypatch) == before
    assert {Path(path).name for path in before.sources} >= {"steps.py", "helpers.py", "extra.py"}


def _edit(app: Path) -> None:
    (app / "extra.py").write_text("SCALE = 3\n")


def _edit_what_nobody_reaches(app: Path) -> None:
    (app / "extra.py").write_text("SCALE = 2\nOTHER = 3\n")


def _make_a_package_of_a_module(app: Path) -> None:
    (app / "extra.py").unlink()
    (app / "extra").mkdir()
    (app / "extra/__init__.py").write_text("from .scale import SCALE\n")
    (app / "extra/scale.py").write_text("SCALE = 2\n")


def _make_a_module_of_what_was_a_name(app: Path) -> None:
    (app / "extra.py").unlink()
    (app / "extra").mkdir()
    (app / "extra/__init__.py").write_text("")
    (app / "extra/SCALE.py").write_text("__rmul__ = None\n")


def _remove_a_module(app: Path) -> None:
    (app.parent / f"optional_{app.name}.py").unlink()


def _shadow_a_library(app: Path) -> None:
    (app.parent / "importlib.py").write_text("ACTS = print('imported')\n")


@pytest.mark.parametrize(
    "change",
    [
        _edit,
        _edit_what_nobody_reaches,
        _make_a_package_of_a_module,
        _make_a_module_of_what_was_a_name,
        _remove_a_module,
        _shadow_a_library,
    ],
)
def test_a_change_of_what_was_looked_at_gives_what_a_first_walk_gives(
    app: Path, change: Callable[[Path], None]
) -> None:
    found(app)
    change(app)
    again = found(app)
    shutil.rmtree(app.parent.parent / "cache")
    assert again == found(app)


def test_a_module_that_appears_is_seen(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optional = app.parent / f"optional_{app.name}.py"
    optional.unlink()
    without = found(app)
    optional.write_text("print('this acts when it is imported')\n")
    assert found(app).digest != without.digest
    assert looked_up(app, monkeypatch).digest != without.digest


def test_a_damaged_entry_is_walked_anew(app: Path) -> None:
    before = found(app)
    entries = list((app.parent.parent / "cache/closures").rglob("*.json"))
    assert entries
    for entry in entries:
        entry.write_bytes(entry.read_bytes().replace(before.digest[:8].encode(), b"00000000"))
    assert found(app) == before


def test_checkouts_of_one_project_keep_closures_side_by_side(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found(app)
    other = tmp_path / "other" / app.name
    shutil.copytree(app, other)
    (other / "extra.py").write_text("SCALE = 5\n")
    monkeypatch.syspath_prepend(other.parent)
    assert found(other).digest != first.digest
    monkeypatch.syspath_prepend(app.parent)
    assert looked_up(app, monkeypatch) == first


def test_a_user_without_a_home_has_no_cache_and_no_folder_called_tilde(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv(shelf.FOLDER)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", str)  # as for a user whom no file of users names
    shelf._folder.cache_clear()
    shelf.save(entry := shelf.place("kind", b"about"), 1)
    with pytest.raises(OSError, match="directory"):
        shelf.load(entry)
    assert file_digests([str(app / "steps.py")])
    assert not list(here.iterdir())


def test_entries_that_nothing_read_for_a_month_are_deleted(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, unused, new = (shelf.place("kind", about) for about in (b"used", b"unused", b"new"))
    for entry in (used, unused, new):
        shelf.save(entry, 1)
    half_written = unused.with_name("half-written.json")
    others = tmp_path / "cache" / "objects" / "ab" / "photo.json"
    others.parent.mkdir(parents=True)
    for file in (half_written, others):
        file.touch()
    long_ago = time.time() - 40 * 24 * 60 * 60
    for file in (used, unused, half_written, others):
        os.utime(file, (long_ago, long_ago))
    assert shelf.load(used) == 1
    shelf.forget_unused()
    assert [f.exists() for f in (used, unused, half_written)] == [True, False, False]
    assert new.exists()
    assert others.exists()

    os.utime(new, (long_ago, long_ago))
    shelf.forget_unused()  # once a day is enough
    assert new.exists()


def test_what_another_version_of_a_reader_kept_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "reading").mkdir()
    for name in ("reader.py", "reading/words.py", "other.py"):
        (tmp_path / name).write_text("1")
    found = [shelf.version_of("reader.py", "reading/*.py", room=tmp_path)]
    for name in ("other.py", "reader.py", "reading/words.py"):
        (tmp_path / name).write_text("2")
        found.append(shelf.version_of("reader.py", "reading/*.py", room=tmp_path))
    assert found[0] == found[1]
    assert len(set(found)) == 3
