"""What a plan says of code that changed."""

import importlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.observed.discovery import Home, Present
from pipeline.store.manifest import Discovered

SOURCE = """SCALE = 2
TABLE = {}
TABLE["a"] = 1
TABLE["b"] = 2


def run():
    return SCALE * helper()


def helper():
    return 1
"""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("return 1", "return 2", ["helper changed (m.py:11)"]),
        ("SCALE = 2", "SCALE = 3", ["SCALE changed (m.py:1)"]),
        ('["a"] = 1', '["a"] = 3', ['TABLE["a"] = 3 changed (m.py:3)']),
        ('TABLE["a"]', 'if TABLE == {}:\n    TABLE["a"]', ["if TABLE == {} changed (m.py:3)"]),
        ("TABLE = {}", "TABLE = {}\nprint()", ["print() is new (m.py:3)"]),
        ('TABLE["a"] = 1\n', "", ["1 statement gone (m.py)"]),
        (
            'TABLE["a"] = 1\nTABLE["b"] = 2',
            'TABLE["b"] = 2\nTABLE["a"] = 1',
            ["the order of statements changed (m.py)"],
        ),
        ("SCALE * helper()", "helper()", ["run changed (m.py:7)"]),
        (
            "helper()",
            "named()",
            ["run changed (m.py:7)", "named is new (m.py:11)", "helper is gone (m.py)"],
        ),
        ("def helper", "def helper(", ["module m is no valid Python"]),
    ],
)
def test_what_changed_is_told_by_name_and_line(
    before: str, after: str, told: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module := tmp_path / "m.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    home = Home("m", str(tmp_path))
    units = {"m:run": "", "m:helper": "", "m:(import)": ""}
    trace = Discovered(code=Present().state(home, Discovered(code=units)).code)
    assert Present().changes(home, trace) == []
    module.write_text(SOURCE.replace(before, after))
    importlib.invalidate_caches()
    assert Present().changes(home, trace) == told
