"""Files that native code and started programs open, as the preloaded library sees them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline import Output, Store, run, step
from pipeline.dag.input_folders import InputFolders
from pipeline.observed import native
from pipeline.observed.discovery import _events
from pipeline.observed.file_fingerprints import UNSTEADY, file_digest
from pipeline.observed.path_filter import Rules

FILES = {
    "a.txt": "a.txt\n",
    "b.txt": "b\n",
    "d/c.txt": "c\n",
    "d/e/f.txt": "f\n",
    "h.h": "#define K 0\n",
    "m.c": '#include "h.h"\nint main() { return K; }\n',
    "Makefile": "go: out.txt\n\t@cat out.txt\nout.txt: a.txt\n\t@cp a.txt out.txt\n",
    "nums.py": "from pathlib import Path\nprint(Path('a.txt').read_text())\n",
}
ALL_OF_D = {"d": "listed", "d/e": "listed", "d/c.txt": "read", "d/e/f.txt": "read"}


@pytest.fixture
def seen(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """A function that runs a command in a project with `FILES`, and tells what it depends on: each
    path with ``read``, ``listed``, ``absent``, ``before`` (the digest of what it was) or
    ``unsteady``."""
    project, folder = tmp_path / "project", tmp_path / "observed"
    folder.mkdir()
    for name, text in FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    digests = {file_digest(str(project / name)) for name in FILES}
    (folder / "marks").touch()

    def sees(command: str | list[str], **environment: str) -> dict[str, str]:
        rules = Rules.of("app", [str(project)], [])
        native.write_rules(folder / "native", rules, "/none")
        (folder / "events").write_bytes(b"")
        words = ["bash", "-c", command] if isinstance(command, str) else command
        observed = {
            **native.preloaded({**os.environ, **environment}),
            "TEMPER_OBSERVED": str(folder),
        }
        done = subprocess.run(words, cwd=project, env=observed, stdout=-1, stderr=-1, text=True)
        assert not done.stderr, done.stderr
        records = [json.loads(line) for line in (folder / "events").read_bytes().splitlines()]
        reads, folders, _ = _events(native.plain(records, rules, str(folder)), InputFolders(None))
        found = {path: _word(state, digests) for path, state in reads.items()}
        found |= dict.fromkeys(folders, "listed")
        return {os.path.relpath(path, project): word for path, word in found.items() if word}

    return sees


def _word(state: Any, digests: set[str]) -> str:
    if state is None:
        return "absent"
    if isinstance(state, str):
        return "before" if state in digests else "unsteady" if state == UNSTEADY else state
    return "read" if state else ""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat a.txt", {"a.txt": "read"}),
        ("cat {a,b}.txt", {"a.txt": "read", "b.txt": "read"}),
        ("cd d; cat *.txt", {"d": "listed", "d/c.txt": "read"}),
        ("cp -r d x; cat x/c.txt", ALL_OF_D),
        ("grep -r c d", ALL_OF_D),
        ("find d -name '*.txt' -exec cat {} +", ALL_OF_D),
        ("tar cf - d | wc -c", ALL_OF_D),
        (
            "awk 1 a.txt; xargs echo < b.txt",
            {"a.txt": "read", "b.txt": "read"},
        ),
        ("env -i /bin/cat a.txt", {"a.txt": "read"}),
        ("test -e gone || test -r a.txt", {"gone": "absent", "a.txt": "read"}),
        ("ln -s a.txt l; cat l", {"a.txt": "read"}),
        (
            "rm -rf /tmp/$$; ln -s $PWD/d /tmp/$$; cat /tmp/$$/c.txt; rm /tmp/$$",
            {"d/c.txt": "read"},
        ),
        ("cp a.txt t; mv t u; cat u", {"a.txt": "read"}),
        ("mkdir -p n/m; cp a.txt n/m; cat n/m/*", {"a.txt": "read"}),
        ("echo > b.txt; cat b.txt", {}),
        ("cat b.txt; echo > b.txt", {"b.txt": "before"}),
        ("echo y >> b.txt; cat b.txt", {"b.txt": "before"}),
        ("sed -i s/b/c/ b.txt", {"b.txt": "before"}),
        ("git init -q; git add a.txt; git status > /dev/null", {}),
    ],
)
def test_the_files_that_a_program_opens_are_seen(
    seen: Callable[..., dict[str, str]], command: str, expected: dict[str, str]
) -> None:
    assert seen(command) == expected


def test_a_compiler_and_what_it_includes_are_seen(seen: Callable[..., dict[str, str]]) -> None:
    found = seen("gcc m.c -o m && ./m")
    assert {name for name, word in found.items() if word == "read"} == {"m.c", "h.h"}


def test_make_depends_on_its_makefile_and_not_on_what_it_made(
    seen: Callable[..., dict[str, str]],
) -> None:
    found = seen("make -s; make -s")
    assert {name for name, word in found.items() if word == "read"} == {"Makefile", "a.txt"}
    assert "out.txt" not in found
    assert found["."] == "listed"


@pytest.mark.parametrize(
    "code",
    [
        "from pyarrow.dataset import dataset; dataset('d', format='csv').to_table()",
        "import ctypes; [ctypes.CDLL(None).open(n, 0) for n in (b'd/c.txt', b'd/e/f.txt')]",
    ],
)
def test_native_code_of_a_python_is_seen(seen: Callable[..., dict[str, str]], code: str) -> None:
    found = seen([sys.executable, "-c", code])
    assert {"d/c.txt": "read", "d/e/f.txt": "read"}.items() <= found.items()


def test_a_python_that_cannot_join_is_seen(seen: Callable[..., dict[str, str]]) -> None:
    found = seen([sys.executable, "-S", "-E", "nums.py"])
    assert {"nums.py": "read", "a.txt": "read"}.items() <= found.items()


@step
def starts_a_program(out: Output) -> dict[str, Any]:
    subprocess.run(["true"], check=True)
    (out.path / "x").touch()
    return {"one": 1}


def test_without_the_library_a_step_that_starts_a_program_has_a_notice(
    store: Store, workers_here: None
) -> None:
    """Workers in this process have no library."""
    made = run({"one": starts_a_program()}, store, console=Console(quiet=True))
    assert made["one"].metrics["notices"] == [native.NOTICE]


def test_without_a_compiler_workers_start_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native.user_cache, "_folder", lambda: tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    native._library.cache_clear()
    assert native.preloaded({"A": "1"}) == {"A": "1"}
    native._library.cache_clear()
