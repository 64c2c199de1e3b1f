"""Fixtures shared by all tests. Nothing here replaces a part of Temper: stores are real folders,
workers real processes."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from pipeline import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def console() -> Console:
    """A console that keeps what was printed: ``console.file.getvalue()``."""
    return Console(file=io.StringIO(), width=120)


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent
