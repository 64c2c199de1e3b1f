"""What tests of the commands share."""

import shutil
from pathlib import Path

import pytest
from own_script import MEASURES, Desk


@pytest.fixture(scope="module")
def first_desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.script.parent.mkdir()
    desk.script.write_text(MEASURES)
    assert desk.run() == 4
    return desk


@pytest.fixture
def desk(first_desk: Desk, tmp_path: Path) -> Desk:
    """The script, with a store of what it makes."""
    shutil.copytree(first_desk.folder, tmp_path, dirs_exist_ok=True)
    return Desk(tmp_path)
