"""A file of losses with an error breaks the losses in it, and no other."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from steps import losses
from steps.losses.base import PreferenceLoss, UnpairedLoss
from steps.losses.registry import losses_of

UNIMPORTED = """
@dataclass(frozen=True)
class Mine(ReferenceLoss):
    name: ClassVar[str] = "mine"
    beta: float = 0.1
"""
HALF = """
from dataclasses import dataclass
from typing import ClassVar
from steps.losses.base import ReferenceLoss

@dataclass(frozen=True)
class Half(ReferenceLoss):
    name: ClassVar[str] = "half_done"
    beta: float = 0.1

raise_it = 1 / 0
"""
UNREADABLE = "class Unread(UnpairedLoss):\n    name = 'unread'\n    beta: float = (\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One more folder in which losses are looked for."""
    room = tmp_path / f"room_{secrets.token_hex(4)}"  # modules are imported once
    room.mkdir()
    (room / "__init__.py").touch()
    losses.__path__.append(str(tmp_path))
    yield room
    losses.__path__.remove(str(tmp_path))


def test_a_loss_file_with_an_error_breaks_that_loss_alone(folder: Path) -> None:
    before = losses_of(PreferenceLoss)
    (folder / "mine.py").write_text(UNIMPORTED)
    (folder / "half.py").write_text(HALF)
    (folder / "unread.py").write_text(UNREADABLE)
    (folder / "nothing.py").write_text("import no_such_package\n")
    known = losses_of(PreferenceLoss)
    assert known.keys() - before.keys() == {"mine", "half_done"}
    assert {name: known[name] for name in before} == before
    assert "unread" in losses_of(UnpairedLoss)


@pytest.mark.parametrize(
    ("name", "source", "told"),
    [
        ("mine", UNIMPORTED, "mine.py, line 2: NameError: name 'dataclass' is not defined"),
        ("half_done", HALF, "half_done.py, line 11: ZeroDivisionError"),
    ],
)
def test_who_chooses_it_is_told_the_file_and_the_line(
    name: str, source: str, told: str, folder: Path
) -> None:
    (folder / f"{name}.py").write_text(source)
    chosen = losses_of(PreferenceLoss)[name]
    with pytest.raises(ValueError, match=r"correct the file, or choose another") as refused:
        OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(chosen), {"beta": 0.3}))
    assert told in str(refused.value)


def test_a_file_that_is_corrected_is_a_loss_like_any_other(folder: Path) -> None:
    (folder / "mine.py").write_text(UNIMPORTED)
    assert hasattr(losses_of(PreferenceLoss)["mine"], "stands_in")
    imports = HALF.partition("@dataclass")[0]
    (folder / "mine.py").write_text(imports + UNIMPORTED)
    assert losses_of(PreferenceLoss)["mine"](beta=0.5).beta == 0.5  # type: ignore[call-arg]
