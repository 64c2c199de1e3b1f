"""Keys and digests of code that must never change: an edit would silently orphan every store.

If a test here fails, the encoding changed: undo that, or raise ``ENCODING_VERSION`` knowing that
nothing made before will be found, and write the files in ``golden`` anew with

    PYTHONPATH=.:tests/support python tests/contract/test_golden_keys.py
"""

import enum
import json
import shutil
import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from places import GOLDEN
from rich.console import Console
from toy_steps import Times, add, multiply, numbers, parity

from pipeline import File, HubDataset, HubModel, Step, Store, added_field, execution_detail, run
from pipeline.dag.canonical import hash_json, identity
from pipeline.plan.planning import State, make_plan
from pipeline.store.catalog import Catalog
from pipeline.trace.counted import ALL, Loaded, digests
from pipeline.trace.source_parts import read_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Color(enum.Enum):
    RED = 1


class Level(str, enum.Enum):  # noqa: UP042 (as users have them)
    LOW = "low"


@dataclass(frozen=True)
class Inner:
    rate: float = 1e-6
    color: Color = Color.RED
    squared: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "squared", self.rate**2)


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
    "ordered mapping": OrderedDict(b=1, a=2),
    "read-only mapping": MappingProxyType({"a": 1}),
    "enum of a library": HTTPStatus.OK,
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
    "path": Path(GOLDEN / "numbers.txt"),
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


def code_digests() -> dict[str, str]:
    """Digests of a source with every kind of statement, of which every function ran."""
    source = read_source((GOLDEN / "code_sample.py.txt").read_bytes())
    loaded = Loaded(source, False, frozenset(source.functions), frozenset({ALL}))
    return {**digests({"sample": loaded}, lambda _: False), "whole": source.whole.digest}


def test_code_has_the_digests_that_it_always_had() -> None:
    assert code_digests() == json.loads((GOLDEN / "code.json").read_text("utf-8"))


def roots() -> dict[str, Step]:
    """The experiment of ``golden/store``."""
    values = numbers(File(str(GOLDEN / "numbers.txt")), "/dev/null")
    product = multiply(values["train"], Times(3), "/dev/null")
    return {"sum": add([product, parity(values["test"], "/dev/null")], "/dev/null")}


def test_a_store_that_was_made_once_still_hits(tmp_path: Path, console: Console) -> None:
    shutil.copytree(GOLDEN / "store", tmp_path / "store")
    made = run(roots(), str(tmp_path / "store"), console=console)
    assert made["sum"].metrics == {"total": 12}
    assert "all 4 steps are cached: nothing to run" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_store_that_was_made_once_can_be_added_to(tmp_path: Path, console: Console) -> None:
    shutil.copytree(GOLDEN / "store", tmp_path / "store")
    store = Store(str(tmp_path / "store"))
    values = numbers(File(str(GOLDEN / "numbers.txt")), "/dev/null")
    more = {**roots(), "more": multiply(values["train"], Times(5), "/dev/null")}
    states = {p.step.name: p.state for p in make_plan(more, store).steps}
    assert states["numbers"] is State.CACHED
    run(more, store, console=console)
    assert len(Catalog(store).history("multiply")) == 2


def _write_anew() -> None:
    """Make the golden files from what the present code does, less what is of this machine."""
    keys = {name: hash_json(identity(value, "value")) for name, value in VALUES.items()}
    (GOLDEN / "keys.json").write_text(json.dumps(keys, indent=1), "utf-8")
    (GOLDEN / "code.json").write_text(json.dumps(code_digests(), indent=1), "utf-8")
    shutil.rmtree(GOLDEN / "store", ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "store"
        run(roots(), str(made), console=Console(quiet=True))
        for name in ("manifests", "runs"):
            shutil.copytree(made / name, GOLDEN / "store" / name)
        for content in made.glob("attempts/*/*/*/content"):
            shutil.copytree(content, GOLDEN / "store" / content.relative_to(made))
        shutil.copy(made / "temper.json", GOLDEN / "store")
    for file in (GOLDEN / "store").glob("*/**/*.json"):
        file.chmod(0o644)
        if "content" not in file.parts:
            data = _impersonal(json.loads(file.read_text("utf-8")))
            file.write_text(json.dumps(data, indent=1), "utf-8")


def _impersonal(data: dict[str, Any]) -> dict[str, Any]:
    provenance = data.get("provenance", data)
    data.pop("checksum", None)
    for name in ("host", "commit", "dirty", "cwd", "argv", "store", "pid"):
        provenance.pop(name, None)
    return data


if __name__ == "__main__":
    _write_anew()
