"""Keys that must never change: an edit of the encoding would silently orphan every store.

``golden/keys.json`` was written once. If a test here fails, the encoding changed: undo that, or
raise ``ENCODING_VERSION`` knowing that nothing made before will be found. ``golden/store`` was
written by the first release.
"""

import enum
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from toy_steps import Times, add, multiply, numbers, parity

from pipeline import File, HubDataset, HubModel, Step, Store, added_field, execution_detail, run
from pipeline.canonical import hash_json, identity
from pipeline.catalog import Catalog
from pipeline.plan import State, make_plan

GOLDEN = Path(__file__).parent / "golden"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Color(enum.Enum):
    RED = 1


class Level(str, enum.Enum):  # noqa: UP042 (as users have them)
    LOW = "low"


@dataclass(frozen=True)
class Inner:
    rate: float = 1e-6
    color: Color = Color.RED


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    names: tuple[str, ...] = ("a", "b")
    workers: int = execution_detail(1)
    smoothing: float = added_field(0.5, before=0.0)


VALUES: dict[str, Any] = {
    "none": None,
    "bool": True,
    "int": -7,
    "large int": 2**70,
    "float": 0.1,
    "float like an int": 1.0,
    "negative zero": -0.0,
    "infinity": float("inf"),
    "nan": float("nan"),
    "numpy float": np.float64(0.1),
    "text": "prompt — 問い",
    "bytes": b"\x00\xff",
    "list": [1, [2, "x"]],
    "tuple": (1, (2,)),
    "set": {3, 1, 2},
    "frozenset": frozenset({"a"}),
    "mapping": {"b": 1, "a": [None]},
    "mapping with other keys": {1: "one", (2, 3): "pair"},
    "mapping with a dollar": {"$type": "x"},
    "enum": Color.RED,
    "text enum": Level.LOW,
    "dataclass": Outer(smoothing=0.0),
    "dataclass with an added field": Outer(smoothing=0.5),
    "file": File(str(GOLDEN / "numbers.txt")),
    "path": PurePosixPath(GOLDEN / "numbers.txt"),
    "hub model": HubModel("owner/name", COMMIT),
    "hub dataset": HubDataset("owner/name", COMMIT, "train"),
}


@pytest.fixture(scope="module")
def golden_keys() -> dict[str, str]:
    return json.loads((GOLDEN / "keys.json").read_text("utf-8"))


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_encoded_as_it_always_was(name: str, golden_keys: dict[str, str]) -> None:
    assert hash_json(identity(VALUES[name], "value")) == golden_keys[name]


def test_every_golden_key_is_checked(golden_keys: dict[str, str]) -> None:
    assert golden_keys.keys() == VALUES.keys()


def roots() -> dict[str, Step]:
    """The experiment that the first release ran on ``golden/store``."""
    values = numbers(File(str(GOLDEN / "numbers.txt")), "/dev/null")
    product = multiply(values["train"], Times(3), "/dev/null")
    return {"sum": add([product, parity(values["test"], "/dev/null")], "/dev/null")}


def test_a_store_of_the_first_release_still_hits(tmp_path: Path, console: Console) -> None:
    shutil.copytree(GOLDEN / "store", tmp_path / "store")
    made = run(roots(), str(tmp_path / "store"), console=console)
    assert made["sum"].metrics == {"total": 12}
    assert "all 4 steps are cached: nothing to run" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_store_of_the_first_release_can_be_added_to(tmp_path: Path, console: Console) -> None:
    shutil.copytree(GOLDEN / "store", tmp_path / "store")
    store = Store(str(tmp_path / "store"))
    values = numbers(File(str(GOLDEN / "numbers.txt")), "/dev/null")
    more = {**roots(), "more": multiply(values["train"], Times(5), "/dev/null")}
    states = {p.step.name: p.state for p in make_plan(more, store).steps}
    assert states["numbers"] is State.CACHED
    run(more, store, console=console)
    assert len(Catalog(store).history("multiply")) == 2
    assert json.loads((tmp_path / "store" / "temper.json").read_text()) == {"layout": 2}
