"""What a trace last held with is kept, so that an unchanged plan applies no rule."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.observed.discovery import Home, Present
from pipeline.store.manifest import Discovered
from pipeline.trace import counted

SOURCE = "from colorsys import rgb_to_hls\n\n\ndef run():\n    return rgb_to_hls\n"


def edit(module: Path) -> None:
    module.write_text(SOURCE + "    # and a comment\n\n\nrun.level = 2\n")


def take_the_place_of_a_library(module: Path) -> None:
    module.with_name("colorsys.py").write_text("def rgb_to_hls(): ...\n")


@pytest.mark.parametrize("change", [edit, take_the_place_of_a_library])
def test_a_kept_verdict_is_of_the_same_sources_and_places(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"kept_{change.__name__}"
    (module := tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    home = Home(name, str(tmp_path))

    def now(code: dict[str, str]) -> dict[str, str]:
        return {**Present().state(home, Discovered(code=code)).code}

    was = now({f"{name}:run": "", f"{name}:(import)": ""})
    assert now(was) == was
    with monkeypatch.context() as patch:
        patch.setattr(counted, "digests", None)  # nothing is computed
        assert now(was) == was
    change(module)
    importlib.invalidate_caches()
    assert now(was) != was
