"""What tests of the commands share."""

import pytest
from own_script import MEASURES, Desk


@pytest.fixture(scope="module")
def first_desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.script.parent.mkdir()
    desk.script.write_text(MEASURES)
    assert desk.run() == 4
    return desk
