"""What a worker gets is what was passed, or it is refused where it was passed."""

import dataclasses
import enum
from collections import OrderedDict
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from pipeline import Artifact, Output, TemperError, added_field, execution_detail, step
from pipeline.dag.canonical import canonical_bytes, describe_type, identity, portable, restore


@step(version="1")
def train(out: Output, config: object) -> dict:
    return {}


@step(version="1")
def use(out: Output, tokens: Artifact) -> dict:
    return {}


def key(value: Any) -> bytes:
    return canonical_bytes(identity(value, "value"))


def in_a_worker(value: Any) -> Any:
    return restore(portable(value, "value"), lambda _: None)


def refusal(value: Any) -> str:
    with pytest.raises(TemperError) as raised:
        train(value)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- classes that change what they are given -----------------------------------------------------


@dataclass
class Warmup:
    steps: int = 1000
    warmup: float = 0.1

    def __post_init__(self) -> None:
        self.warmup = int(self.warmup * self.steps)


@dataclass
class Checked:
    rate: float = 0.1
    names: list = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError("the rate lies between 0 and 1")
        self.names = sorted(self.names)


@dataclass
class Appending:
    names: list

    def __post_init__(self) -> None:
        self.names.append("end")


@dataclass
class OwnConstructor:
    size: int

    def __init__(self, width: int, height: int):
        self.size = width * height


@dataclass
class Area:
    width: int
    height: int = 2
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.width * self.height


@dataclass
class Outer:
    inner: Any = None
    beta: float = 0.1


class Setting(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.beta += 1
        return made


@dataclass
class ByItsMetaclass(metaclass=Setting):
    beta: float = 0.0


@dataclass
class ByAssignment:
    beta: float = 0.0

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value + 1)


def test_a_value_that_its_constructor_changes_again_is_refused_with_both_values() -> None:
    said = refusal({"models": [Outer(Warmup(warmup=0.1))]})
    assert said.startswith("train(config).models[0].inner.warmup: 100 becomes 100000 when a worker")


@pytest.mark.parametrize("value", [Appending(["a"]), ByItsMetaclass(), ByAssignment(1.0)])
def test_whatever_makes_another_of_it_is_noticed(value: Any) -> None:
    before = repr(value)
    said = refusal(value)
    assert "when a worker makes the" in said
    assert repr(value) == before, "looking must not change it"


def test_a_constructor_that_gives_the_same_twice_is_fine() -> None:
    value = Checked(names=["b", "a"])
    assert in_a_worker(value) == value
    train({"configs": [value, Outer(value)]})


def test_a_dataclass_with_its_own_constructor_is_refused() -> None:
    said = refusal(Outer(OwnConstructor(2, 3)))
    assert said.startswith("train(config).inner: a worker cannot make this OwnConstructor again")


def test_what_a_constructor_works_out_must_be_what_is_there() -> None:
    value = Area(3)
    assert in_a_worker(value) == value
    value.area = 7
    assert refusal(value).startswith("train(config).area: the constructor of Area makes 6 of it")


def test_an_attribute_that_is_no_field_is_refused_unless_the_constructor_gives_it() -> None:
    value = Outer()
    value.scale = 2  # type: ignore[attr-defined]
    assert refusal(value).startswith("train(config).scale: it was set on the Outer afterwards")


# --- classes that are more than their fields -----------------------------------------------------


@dataclass
class Bag(dict):
    name: str = ""


@dataclass
class Rate(float):
    name: str = ""

    def __new__(cls, name: str = "") -> "Rate":
        return super().__new__(cls, 0.5)


@dataclass
class Items(list):
    name: str = ""


@dataclass
class Failure(Exception):
    name: str = ""


@dataclass
class Given:
    size: InitVar[int] = 1


@pytest.mark.parametrize("cls", [Bag, Items, Failure])
def test_a_dataclass_that_is_a_list_or_mapping_too_is_refused(cls: Any) -> None:
    value = cls()
    assert f"{cls.__name__} is a dataclass and a " in refusal([value])


def test_an_init_var_is_refused() -> None:
    assert "Given has an InitVar, which no value keeps" in refusal(Given())


# --- other values --------------------------------------------------------------------------------


class Shouted(bytes):
    pass


class Percent(float):
    pass


OF_OTHER_TYPES = [Shouted(b"x"), Percent(0.1), Rate("half"), np.int64(3), np.array([1]), Decimal(1)]


@pytest.mark.parametrize("value", OF_OTHER_TYPES, ids=lambda value: type(value).__name__)
def test_a_value_that_would_come_as_another_type_is_refused(value: Any) -> None:
    assert "has no stable identity" in refusal([value])


def test_a_text_that_would_come_as_another_one_is_refused() -> None:
    for value in ("\ud83d\ude00", {"\ud83d\ude00": 1}, {1: "\ud83d\ude00"}):
        assert "has a character as two surrogates" in refusal([value])
    assert in_a_worker("\ud800 \U0001f600") == "\ud800 \U0001f600"


def test_the_double_of_numpy_is_a_float_in_the_key_and_in_the_worker() -> None:
    assert key(np.float64(0.1)) == key(0.1)
    assert type(in_a_worker(np.float64(0.1))) is float


VALUES = [
    OrderedDict(b=1, a=OrderedDict({2: "x", 1: "y"})),
    MappingProxyType({"b": 1, "a": [2]}),
    PurePosixPath("a/b"),
    Path("a/b"),
    HTTPStatus.OK,
    {1: (2, frozenset({3}))},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_as_the_type_it_was(value: Any) -> None:
    again = in_a_worker(value)
    assert type(again) is type(value)
    assert again == value


def test_the_order_of_an_ordered_mapping_counts() -> None:
    one, other = OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)
    assert key(one) != key(other)
    assert list(in_a_worker(other)) == ["b", "a"]
    assert key(one) != key({"a": 1, "b": 2})


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def test_a_value_within_itself_or_very_deep_is_refused_by_name() -> None:
    cyclic: list[Any] = []
    cyclic += [cyclic, cyclic]
    looped: dict[str, Any] = {}
    looped["again"] = looped
    wide: list[Any] = [[] for _ in range(500)]
    train(wide)
    wide.append(wide)
    for value in (cyclic, looped, wide, deep(5000), {"a": deep(200)}, Outer(inner=deep(500))):
        said = refusal(value)
        assert said.startswith("train(config)")
        assert "holds itself, or lists and mappings more than 100 deep" in said
    train(deep(90))
    with pytest.raises(TemperError, match="takes Artifact, the output of a step"):
        use(deep(5000))


# --- identity ------------------------------------------------------------------------------------


@dataclass
class WithAField:
    identity: str = "me"
    name: str = "a"


@dataclass
class WithAMethod:
    name: str = "a"
    note: str = ""

    def identity(self) -> str:
        return self.name


def test_a_field_called_identity_is_a_field() -> None:
    assert key(WithAField("one")) != key(WithAField("two"))
    assert key(WithAField(name="a")) != key(WithAField(name="b"))
    assert in_a_worker(WithAField("one")) == WithAField("one")
    assert key(WithAMethod(note="x")) == key(WithAMethod(note="y")) != key(WithAMethod("b"))


def constant(value: int) -> Any:
    return field(init=False, default=value)


def test_a_field_that_is_not_given_is_part_of_the_identity() -> None:
    def conf(value: int) -> Any:
        made = dataclasses.make_dataclass("Conf", [("k", int, constant(value))])
        made.__module__ = __name__
        return made()

    assert key(conf(3)) != key(conf(4)) != key(conf(5))


# --- how a class is described --------------------------------------------------------------------


def described(*fields: Any, name: str = "Conf", **flags: Any) -> bytes:
    return canonical_bytes(describe_type(dataclasses.make_dataclass(name, fields, **flags)))


A, B = ("a", int, field(default=1)), ("b", int, field(default=2))


def test_order_flags_and_name_of_a_dataclass_are_described_and_defaults_are_not() -> None:
    quiet = ("a", int, field(default=1, repr=False))
    uncompared = ("a", int, field(default=1, compare=False))
    keyword = ("a", int, field(default=1, kw_only=True))
    different = [
        described(A, B), described(B, A), described(A), described(quiet, B),
        described(uncompared, B), described(keyword, B), described(A, B, order=True),
        described(A, B, frozen=True), described(A, B, eq=False), described(A, B, name="Other"),
        described(A, B, slots=True),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert described(A, B) == described(("a", float, field(default=9)), B)
    later = ("c", int, added_field(0, before=0))
    assert described(A, B) == described(A, B, later, ("d", int, execution_detail(1)))


def test_members_of_an_enum_are_described_with_values_aliases_and_order() -> None:
    def members(*named: tuple[str, Any]) -> bytes:
        return canonical_bytes(describe_type(enum.Enum("Color", list(named))))  # type: ignore[arg-type]

    different = [
        members(("A", 1), ("B", 2)), members(("B", 2), ("A", 1)), members(("A", 1), ("B", 3)),
        members(("A", 1), ("B", 1)), members(("A", 1), ("B", "2")),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert members(("A", 1), ("B", 2)) == different[0]
