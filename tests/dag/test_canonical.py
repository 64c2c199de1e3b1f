"""What is part of a value's identity, what is not, and what is refused."""

import enum
import os
import re
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from places import SUPPORT

from pipeline import TemperError, execution_detail
from pipeline.dag.canonical import canonical_bytes, hash_json, identity, portable, restore


class Schedule(enum.Enum):
    LINEAR = "linear"
    COSINE = "cosine"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1


@dataclass(frozen=True)
class Other:
    rate: float = 0.1


@dataclass(frozen=True)
class Config:
    inner: Inner = Inner()
    schedule: Schedule = Schedule.LINEAR
    sizes: tuple[int, ...] = (1, 2)
    workers: int = execution_detail(1)


def key(value: Any) -> str:
    return hash_json(identity(value, "value"))


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=8),
    lambda children: (
        st.lists(children, max_size=4)
        | st.tuples(children, children)
        | st.dictionaries(st.text() | st.integers(), children, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_a_worker_gets_back_the_value_that_was_passed(value: Any) -> None:
    assert restore(portable(value, "value"), lambda _: None) == value


@given(PLAIN, PLAIN)
def test_different_values_have_different_identities(a: Any, b: Any) -> None:
    same = canonical_bytes(identity(a, "a")) == canonical_bytes(identity(b, "b"))
    assert same == (repr(_sorted(a)) == repr(_sorted(b)))


def _sorted(value: Any) -> Any:
    """The value with its mappings in one order, so that ``repr`` tells values apart exactly."""
    if isinstance(value, dict):
        return {k: _sorted(value[k]) for k in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return type(value)(_sorted(item) for item in value)
    return value


def test_a_dataclass_comes_back_whole() -> None:
    config = Config(Inner(0.5), Schedule.COSINE, (3,), workers=4)
    assert restore(portable(config, "config"), lambda _: None) == config


def test_an_execution_detail_is_not_part_of_the_identity() -> None:
    assert key(Config(workers=1)) == key(Config(workers=64))
    assert key(Config(Inner(0.2))) != key(Config(Inner(0.1)))


def test_the_class_of_a_config_is_part_of_its_identity() -> None:
    assert key(Inner()) != key(Other())


def test_values_that_look_alike_are_told_apart() -> None:
    alike = [1, 1.0, True, "1", [1], (1,), {1}, b"1", {"1": 1}, {1: 1}, None, "None"]
    assert len({key(value) for value in alike}) == len(alike)


def test_the_order_of_a_mapping_is_neither_identity_nor_seen_by_the_step() -> None:
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert key(one) == key(other)
    assert list(restore(portable(other, "value"), lambda _: None)) == ["a", "b"]


@pytest.mark.parametrize(
    "value",
    [lambda: 1, object(), open, iter([]), type("Text", (str,), {})("x")],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_stable_identity_is_refused_naming_the_field(value: Any) -> None:
    with pytest.raises(TemperError, match=r"train\(config\)\.callbacks\[1\]: .*no stable identity"):
        identity({"callbacks": [1, value]}, "train(config)")


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (np.arange(3), "pass value.item() or value.tolist()"),
        (OmegaConf.create({"a": 1}), "pass OmegaConf.to_container(value, resolve=True)"),
        (date(2026, 1, 1), "pass value.isoformat()"),
        (namedtuple("Pair", ["a", "b"])(1, 2), "pass value._asdict()"),
        (timedelta(1), "pass value.total_seconds()"),
        (Decimal("0.10"), "pass str(value)"),
        (Fraction(1, 3), "pass str(value)"),
        (UUID(int=1), "pass str(value)"),
        (Access.READ | Access.WRITE, "pass list(value)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refused_value_is_told_how_to_be_written_as_data(value: Any, advice: str) -> None:
    with pytest.raises(TemperError, match=re.escape(advice)):
        key(value)


def test_a_path_stands_for_the_content_of_its_file(tmp_path: Path) -> None:
    one, same, other = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"
    for path, text in ((one, "x"), (same, "x"), (other, "y")):
        path.write_text(text)
    assert key(one) == key(same) != key(other)


def test_a_pure_path_stands_for_its_text_since_nothing_can_be_read_through_it() -> None:
    paths = (PurePosixPath("no/such"), PureWindowsPath("no/such"), PurePosixPath("no"), "no/such")
    assert len({str(key(path)) for path in paths}) == 4


def test_identities_are_equal_in_every_process() -> None:
    """The other process orders a set otherwise: its seed of hashes is another."""
    value = "{'s': {*map(str, range(20))}, 'c': t.Config(), 'f': 0.1}"
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    told = subprocess.check_output(
        [sys.executable, "-c", f"import test_canonical as t; print(t.key({value}))"],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        cwd=SUPPORT,
        text=True,
    )
    assert told.strip() == str(key({"s": {*map(str, range(20))}, "c": Config(), "f": 0.1}))
