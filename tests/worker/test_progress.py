"""What a worker says of a step that says nothing of itself."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from waiting import wait_until

from pipeline import Store
from pipeline.wire.spec import StepSpec
from pipeline.worker.progress import ProgressWriter

SPEC = StepSpec(
    store="", step="learn", key="0" * 32, function="", arguments={}, inputs=(), attempt="",
    files={}, types=(), epoch=0,
)  # fmt: skip


def told(store: Store) -> dict[str, Any]:
    return json.loads(store.read(store.progress_path(SPEC.step, SPEC.key)) or b"{}")


def test_a_library_that_is_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "a_slow_library"
    package.mkdir(parents=True)
    look = "import sys\nfrom pipeline.worker.progress import place_of\n"
    (package / "__init__.py").write_text(f"{look}PLACE = place_of(sys._getframe())\n")
    monkeypatch.syspath_prepend(str(package.parent))
    import a_slow_library  # type: ignore[import-not-found]

    assert a_slow_library.PLACE == "importing a_slow_library"


def test_a_silent_step_is_told_of_until_it_speaks(store: Store) -> None:
    store.prepare()
    writer = ProgressWriter(store, SPEC)

    def read_the_model() -> None:
        wait_until(lambda: told(store).get("doing"))

    with writer.watching():
        read_the_model()
        assert told(store)["doing"] == "working"
        writer.progress(1, 3, {"loss": 0.5})
        assert told(store)["done"] == 1
        assert told(store)["metrics"] == {"loss": 0.5}


def test_a_step_whose_progress_cannot_be_written_goes_on(store: Store) -> None:
    store.prepare()
    writer = ProgressWriter(store, SPEC)
    writer.progress(1, 2, cast(Any, {"loss": object()}))
    Path(store.progress_path(SPEC.step, SPEC.key)).mkdir(parents=True)
    writer.progress(2, 2)
