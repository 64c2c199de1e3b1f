"""What a worker's parent has imported, as its workers find it."""

import importlib
import sys
from pathlib import Path

import pytest

from pipeline.worker.libraries.hidden_packages import Imported, noting


def test_the_standard_library_stays_when_what_imported_it_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a step that imports it would have it twice, with what it holds."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("takes_sound", "wave"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "takes_sound.py").write_text("import wave\n")
    imported = Imported()
    with noting(imported, "takes_sound"):
        importlib.import_module("takes_sound")
    assert imported.modules.keys() == {"takes_sound"}
    assert "wave" in sys.modules
