"""The encoding of argument values, in two forms.

Every value that a step function takes is encoded as JSON with tagged structures, so that equal
values give equal bytes in every process and on every machine:

- :func:`identity` is the form for the key: a dataclass without its execution details, an input file
  as the digest of its content, a class by its own name without its module.
- :func:`portable` is the form from which a worker rebuilds the value with :func:`restore`: every
  field, the path of a file instead of its content, a class with its module.

A value without a stable identity (a function, an open handle, an object with the default ``repr``)
is refused with the name of its field. Its hash would change from run to run or, worse, would not
change when the value does. The order of a mapping is not part of its identity, so ``restore``
always sorts mappings: a step cannot depend on an order that its key ignores. (An ``OrderedDict``
keeps its order in both forms.) A worker gets a value of the same type as the author passed. Only
NumPy's ``float64`` counts as a ``float``, in the key and in the worker.

A dataclass field that cannot change a result (device, worker count, checkpoint interval) is
declared with :func:`execution_detail`. A field that was added after artifacts existed is declared
with :func:`added_field`: while it has the value that older results used implicitly, their keys stay
the same. A dataclass may also define a method ``identity()`` that returns its value in the key, in
place of its fields.
"""

import base64
import dataclasses
import enum
import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import FunctionType, MappingProxyType
from typing import Any

import blake3

from pipeline.base.errors import TemperError
from pipeline.base.references import reference_to, resolve_reference
from pipeline.base.text import cut
from pipeline.dag.value_types import DataclassType, dataclass_type, name_in_key

__all__ = [
    "EncodeInput", "Json", "added_field", "canonical_bytes", "describe_type", "execution_detail",
    "hash_json", "identity", "portable", "reference_to", "resolve_reference", "restore", "same",
    "too_deep",
]  # fmt: skip

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
EncodeInput = Callable[[Any], Json]
"""Encodes a reference to another step's output; returns ``None`` for any other value."""

DEEPEST = 100
"""The deepest nesting of a value; nobody writes deeper values by hand."""
LARGEST_INT_BITS = 10_000
"""The longest integer; Python refuses to convert longer ones to text."""


def execution_detail(default: Any) -> Any:
    """A dataclass field that affects how a step runs but not its result; as a decorator, a function
    or class that does not affect a result.

        workers: int = execution_detail(1)

        @execution_detail
        def show_progress(done, total): ...

    Keys do not depend on such a definition. The test for both: would an existing artifact be a
    wrong answer if this were different?
    """
    if isinstance(default, type | FunctionType):
        return default
    return dataclasses.field(default=default, metadata={"identity": False})


def added_field(default: Any, *, before: Any) -> Any:
    """A dataclass field that was added later; it is not in the key while it has the value
    ``before``.

    Args:
        before: the value that older results used implicitly, whatever the default is or becomes.
    """
    return dataclasses.field(default=default, metadata={"before": before})


def identity(
    value: Any,
    where: str,
    encode_input: EncodeInput = lambda _: None,
    types: set[type] | None = None,
    home: str = "",
    qualified: Collection[str] = (),
) -> Json:
    """The form of ``value`` for a key.

    Args:
        where: names the value in errors.
        types: collects every dataclass and enum in the value, since a trace names them.
        home: the module of the step function that takes the value.
        qualified: names of classes that are ambiguous, so that their modules are in the key.

    Raises:
        TemperError: the value, or a part of it, has no stable identity.
    """
    return _Identity(encode_input, types, home, qualified).encode(value, where)


def portable(
    value: Any,
    where: str,
    encode_input: EncodeInput = lambda _: None,
    restore_input: Callable[[Any], Any] = lambda _: None,
) -> Json:
    """The form of ``value`` from which :func:`restore` rebuilds it in another process.

    Raises:
        TemperError: the rebuilt value would differ.
    """
    encoder = _Portable(encode_input)
    encoded = encoder.encode(value, where)
    if not encoder.is_plain:
        _require_same_again(encoded, where, encoder, restore_input)
    return encoded


def canonical_bytes(data: Json) -> bytes:
    """The bytes that are hashed: ASCII JSON with sorted keys and no spaces."""
    return _json(data).encode()


_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def same(one: Json, other: Json) -> bool:
    """Whether two encoded values are equal; ``1``, ``1.0`` and ``True`` are different."""
    return canonical_bytes(one) == canonical_bytes(other)


def hash_json(data: Json) -> str:
    """BLAKE3 of the canonical bytes, 32 hexadecimal digits (128 bits)."""
    return blake3.blake3(canonical_bytes(data)).hexdigest()[:32]


_SCALARS = (type(None), bool, int, str, float)
_PATHS = (PosixPath, PurePosixPath, PureWindowsPath, WindowsPath)
_PATH_TYPES = {path.__name__: path for path in (Path, PurePosixPath, PureWindowsPath)}
_NUMPY = "numpy"
_SPLIT_CHARACTER = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class _Encoder:
    """The common part of both forms; subclasses define the differences."""

    def __init__(self, encode_input: EncodeInput, types: set[type] | None = None):
        self.encode_input = encode_input
        self.types = set() if types is None else types
        self.depth = 0

    def encode(self, value: Any, where: str) -> Json:
        if type(value) in _SCALARS:  # most values, and none of them is an input
            return self._float(value, where) if type(value) is float else self._plain(value, where)
        encoded = self.encode_input(value)
        if encoded is not None:
            return encoded
        match value:
            case enum.Enum():  # first, since a str or int enum is also a str or int
                return self._enum(value, where)
            case int() | str():  # a subclass may have further state
                raise _no_identity(value, where)
            case float():
                return self._float(value, where)
        self.depth += 1
        if self.depth > DEEPEST:
            raise too_deep(where)
        encoded = self._structure(value, where)
        self.depth -= 1
        return encoded

    def _structure(self, value: Any, where: str) -> Json:
        match value:
            case bytes() if type(value) is bytes:
                return {"$bytes": base64.b64encode(value).decode()}
            case list() if type(value) is list:
                return self._items(value, where)
            case tuple() if type(value) is tuple:
                return {"$tuple": self._items(value, where)}
            case set() | frozenset() if type(value) in (set, frozenset):
                members = [self.encode(item, f"{where}{{}}") for item in value]
                return {f"${type(value).__name__}": sorted(members, key=canonical_bytes)}
            case dict() if type(value) is dict:  # a subclass may have further state
                return self._mapping(value, where)
            case OrderedDict() if type(value) is OrderedDict:
                return {"$ordered": self._pairs(value, where)}
            case MappingProxyType():
                return {"$readonly": self._mapping(dict(value), where)}
            case PurePath() if type(value) in _PATHS:
                return self._path(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, where)
        raise _no_identity(value, where)

    def _enum(self, value: enum.Enum, where: str) -> Json:
        cls = type(value)
        if cls.__members__.get(value._name_ or "") is not value:  # a combination of flags
            raise _no_identity(value, where)
        self.types.add(cls)
        return {"$enum": f"{self._name(cls, where)}.{value._name_}"}

    def _plain(self, value: bool | int | str | None, where: str) -> Json:
        if type(value) is int and value.bit_length() > LARGEST_INT_BITS:
            raise TemperError(f"{where}: a number of {value.bit_length()} bits is too long to be "
                              "written down; pass it as bytes")  # fmt: skip
        if type(value) is str and not value.isascii() and _SPLIT_CHARACTER.search(value):
            raise TemperError(
                f"{where}: the text {value!a:.60} has a character as two surrogates, "
                "which would come to a worker as one; pass "
                "value.encode('utf-16', 'surrogatepass').decode('utf-16')"
            )
        return value

    def _float(self, value: float, where: str) -> Json:
        if type(value) is not float and type(value).__module__ != _NUMPY:
            raise _no_identity(value, where)
        number = float(value)  # NumPy's float64 is a float with another repr
        return number if math.isfinite(number) else {"$float": repr(number)}

    def _items(self, values: list | tuple, where: str) -> list[Json]:
        return [self.encode(item, f"{where}[{i}]") for i, item in enumerate(values)]

    def _mapping(self, value: Mapping, where: str) -> Json:
        if all(type(key) is str and not key.startswith("$") for key in value):
            for key in value:
                self._plain(key, f"{where} (key)")
            return {key: self.encode(value[key], f"{where}.{key}") for key in sorted(value)}
        return {"$map": sorted(self._pairs(value, where), key=canonical_bytes)}

    def _pairs(self, value: Mapping, where: str) -> list[Json]:
        return [
            [self.encode(key, f"{where} (key)"), self.encode(item, f"{where}[{key!r:.40}]")]
            for key, item in value.items()
        ]

    def _dataclass(self, value: Any, where: str) -> Json:
        try:
            known = dataclass_type(type(value))
        except TemperError as error:
            raise TemperError(f"{where}: {error}") from error
        self.types.add(type(value))
        return self._fields(value, known, where)

    def _is_detail(self, field: dataclasses.Field, value: Any, where: str) -> bool:
        """Whether a field affects no result, or has the value that older results used."""
        if not field.metadata:
            return False
        if not field.metadata.get("identity", True):
            return True
        if "before" not in field.metadata:
            return False
        now, before = getattr(value, field.name), field.metadata["before"]
        return same(self.encode(now, f"{where}.{field.name}"), self.encode(before, where))

    def _name(self, cls: type, where: str) -> str:
        raise NotImplementedError

    def _path(self, value: PurePath) -> Json:
        kind = "Path" if isinstance(value, Path) else type(value).__name__
        return {"$path": str(value), "kind": kind}

    def _fields(self, value: Any, known: DataclassType, where: str) -> Json:
        raise NotImplementedError


class _Identity(_Encoder):
    """The form for a key."""

    def __init__(
        self,
        encode_input: EncodeInput,
        types: set[type] | None,
        home: str,
        qualified: Collection[str],
    ):
        super().__init__(encode_input, types)
        self.home, self.qualified = home, qualified

    def _name(self, cls: type, where: str) -> str:
        try:
            name = name_in_key(cls, self.home)
        except TemperError as error:
            raise TemperError(f"{where}: {error}") from error
        return reference_to(cls) if name in self.qualified else name

    def _path(self, value: PurePath) -> Json:
        from pipeline.dag.inputs import File  # a path is identified by the content of its file

        if not isinstance(value, Path):  # a pure path is a text: nothing can be read through it
            return super()._path(value)
        return self.encode(File(str(value)), str(value))

    def _fields(self, value: Any, known: DataclassType, where: str) -> Json:
        name = self._name(type(value), where)
        if known.stands_for_itself:
            return {"$type": name, "identity": self.encode(value.identity(), where)}
        fields = {
            field.name: self.encode(held, f"{where}.{field.name}")
            for field in known.fields
            if (held := getattr(value, field.name, _ABSENT)) is not _ABSENT
            and not self._is_detail(field, value, where)
        }
        return {"$type": name, "fields": fields}


class _Portable(_Encoder):
    """The form for a worker. ``derived`` holds the values that the constructor computes, which the
    rebuilt value must have too.

    Attributes:
        is_plain: whether the value consists of fields only, so that rebuilding cannot change it.
    """

    def __init__(self, encode_input: EncodeInput):
        super().__init__(encode_input)
        self.is_plain = True

    def _name(self, cls: type, where: str) -> str:
        return reference_to(cls)

    def _fields(self, value: Any, known: DataclassType, where: str) -> Json:
        fields: dict[str, Json] = {}
        derived: dict[str, Json] = {}
        for field in known.fields:
            name = field.name
            held = getattr(value, name, _ABSENT)
            if field.init and held is _ABSENT:
                raise TemperError(f"{where}.{name}: the field has no value; give it one")
            if field.init:
                fields[name] = self.encode(held, f"{where}.{name}")
            elif held is not _ABSENT and field.metadata.get("identity", True):
                derived[name] = self.encode(held, f"{where}.{name}")
        for name, extra in known.extras(value).items():
            derived[name] = self._extra(extra, f"{where}.{name}")
        self.is_plain = self.is_plain and known.is_plain and not derived
        encoded: dict[str, Json] = {"$type": known.reference, "fields": fields}
        if derived:
            encoded["derived"] = derived
        return encoded

    def _extra(self, value: Any, where: str) -> Json:
        """Encode an attribute that is no field, as far as possible."""
        depth = self.depth
        try:
            return self.encode(value, where)
        except TemperError:
            self.depth = depth
            return {"$other": f"{type(value).__module__}.{type(value).__qualname__}"}


def _require_same_again(
    encoded: Json, where: str, encoder: _Portable, restore_input: Callable[[Any], Any]
) -> None:
    """Rebuild a value as a worker will, and refuse it if the result differs."""
    mark = hash_json(encoded), frozenset(encoder.types)
    if mark in _SAME_AGAIN:
        return
    classes = {reference_to(cls): cls for cls in encoder.types}

    def rebuilt(data: Json, at: str) -> Json:
        value = restore(data, restore_input, classes.__getitem__)
        return _Portable(encoder.encode_input).encode(value, at)

    for at, part in _dataclasses_in(encoded, where):  # innermost first
        known, cls = classes[part["$type"]], classes[part["$type"]].__name__
        if dataclass_type(known).is_plain and "derived" not in part:
            continue
        try:
            again = rebuilt(part, at)
        except Exception as error:  # raised by the constructor of the user's class
            raise TemperError(
                f"{at}: a worker cannot make this {cls} again from its fields "
                f"({' '.join(str(error).split()) or type(error).__name__}); let its constructor "
                "take the fields by their names, as they are once it is made"
            ) from error
        if not same(part, again):
            raise TemperError(_what_changed(at, cls, part, again))
    if len(_SAME_AGAIN) >= _MOST_REMEMBERED:
        _SAME_AGAIN.clear()
    _SAME_AGAIN.add(mark)


def _dataclasses_in(data: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every encoded dataclass in a value with its place, innermost first."""
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from _dataclasses_in(item, f"{where}[{index}]")
    elif isinstance(data, dict) and "$type" in data:
        for name, item in data["fields"].items():
            yield from _dataclasses_in(item, f"{where}.{name}")
        yield where, data
    elif isinstance(data, dict):
        for name, item in data.items():
            yield from _dataclasses_in(item, where if name.startswith("$") else f"{where}.{name}")


def _what_changed(where: str, cls: str, before: Any, after: Any) -> str:
    for name, value in before["fields"].items():
        if not same(value, again := after["fields"].get(name)):
            return (
                f"{where}.{name}: {_short(value)} becomes {_short(again)} when a worker makes the "
                f"{cls} again from its fields; let __post_init__ leave what it has made as it is, "
                "or put it into a field with init=False"
            )
    old, new = before.get("derived", {}), after.get("derived", {})
    name = next(n for n in (*old, *new) if not same(old.get(n), new.get(n)))
    if name not in new:
        return (
            f"{where}.{name}: it was set on the {cls} afterwards and is no field, so no worker "
            "would have it; make it a field"
        )
    return (
        f"{where}.{name}: the constructor of {cls} makes {_short(new[name])} of it and not "
        f"{_short(old.get(name))}, as here, so a worker could not know; give it to the constructor"
    )


def _short(value: Json) -> str:
    return cut(json.dumps(value), _LONGEST_SHOWN)


_ABSENT = object()
_LONGEST_SHOWN = 60
_MOST_REMEMBERED = 10_000
_SAME_AGAIN: set[tuple[str, frozenset[type]]] = set()
"""Values that were rebuilt without a difference; experiments pass the same values repeatedly."""


def describe_type(cls: type) -> Json:
    """The properties of a dataclass or enum, besides its values and methods, that can affect a
    result, as they are at run time, however the class was written.

    For a dataclass: the names and order of its fields, and its options for construction, comparison
    and repr. Defaults are left out, since the values are in the key; so are fields that affect no
    result or were added later. For an enum: its members in order, with their values.

    Returns:
        ``None`` for a class that this does not describe completely; then its source counts.
    """
    if issubclass(cls, enum.Enum):
        return _describe_enum(cls)
    return _describe_dataclass(cls) if dataclasses.is_dataclass(cls) else None


def _describe_dataclass(cls: Any) -> Json:
    fields: list[Json] = [
        [field.name, {flag: getattr(field, flag) for flag in _FIELD_FLAGS}]
        for field in dataclasses.fields(cls)
        if field.metadata.get("identity", True) and "before" not in field.metadata
    ]
    given = cls.__dataclass_params__
    made: dict[str, Json] = {flag: getattr(given, flag) for flag in _DATACLASS_FLAGS}
    made["slots"] = "__slots__" in vars(cls)
    made["match_args"] = "__match_args__" in vars(cls)
    return {"dataclass": cls.__qualname__, "fields": fields, "made": made}


def _describe_enum(cls: type[enum.Enum]) -> Json:
    try:
        members: list[Json] = [
            [name, member._name_, identity(member._value_, f"{cls.__qualname__}.{name}")]
            for name, member in cls.__members__.items()  # including aliases
        ]
    except TemperError:
        return None
    return {"enum": cls.__qualname__, "members": members}


_FIELD_FLAGS = ("repr", "compare", "hash", "init", "kw_only")
_DATACLASS_FLAGS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
"""The flags that exist in every supported Python version."""


def restore(
    data: Json,
    restore_input: Callable[[Any], Any],
    resolve: Callable[[str], Any] = resolve_reference,
) -> Any:
    """Rebuild a value from the form that :func:`portable` made.

    Args:
        restore_input: returns the value for the content of ``{"$input": …}``.
        resolve: returns the class with a ``module:qualname``.
    """
    if isinstance(data, list):
        return [restore(item, restore_input, resolve) for item in data]
    if not isinstance(data, dict):
        return data

    def within(item: Any) -> Any:
        return restore(item, restore_input, resolve)

    tag = next((key for key in data if key.startswith("$")), None)
    content: Any = data.get(tag) if tag else None
    match tag:
        case None:
            return {key: within(item) for key, item in data.items()}
        case "$input":
            return restore_input(content)
        case "$float":
            return float(content)
        case "$bytes":
            return base64.b64decode(content)
        case "$tuple" | "$set" | "$frozenset":
            kind = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}[tag]
            return kind(within(item) for item in content)
        case "$map":
            return {within(k): within(v) for k, v in content}
        case "$ordered":
            return OrderedDict((within(k), within(v)) for k, v in content)
        case "$readonly":
            return MappingProxyType(within(content))
        case "$path":
            return _PATH_TYPES[str(data["kind"])](content)
        case "$enum":
            cls, _, name = content.rpartition(".")
            return resolve(cls)[name]
        case "$type":
            fields: Any = data["fields"]
            return resolve(content)(**{name: within(item) for name, item in fields.items()})
    raise ValueError(f"unknown tag {tag!r} in an encoded value")


def too_deep(where: str) -> TemperError:
    """The error for a value that is nested too deeply, or contains itself."""
    return TemperError(f"{where[:60]}…: this holds itself, or lists and mappings more than "
                       f"{DEEPEST} deep; pass it flat")  # fmt: skip


_FORMS = {
    "tolist": "value.item() or value.tolist()",
    "model_dump": "value.model_dump()",
    "_asdict": "value._asdict()",
    "__attrs_attrs__": "attrs.asdict(value)",
    "isoformat": "value.isoformat()",
    "total_seconds": "value.total_seconds()",
    "as_tuple": "str(value)",
    "limit_denominator": "str(value)",
    "bytes_le": "str(value)",
    "_boundary_": "list(value)",
    "_is_interpolation": "OmegaConf.to_container(value, resolve=True)",
    "save_to_disk": "File(FOLDER) after value.save_to_disk(FOLDER)",
}
"""How to write a value as plain data, by an attribute of its class: for arrays, models of pydantic,
named tuples, classes of attrs, dates, durations, decimals, fractions, UUIDs, combined flags,
configs of OmegaConf and data sets of ``datasets``."""


def _no_identity(value: Any, where: str) -> TemperError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, type):
        advice = f"write {value.__name__}(…) for an instance"
    elif isinstance(value, Iterator | range):
        advice = "pass a list of it"
    elif callable(value):
        advice = "pass the name of a registered function, or a dataclass with its parameters"
    elif isinstance(value, PurePath):
        advice = "pass File(URL)"
    elif form := next((f for method, f in _FORMS.items() if hasattr(type(value), method)), ""):
        advice = f"pass {form}"
    else:
        advice = "pass numbers, strings, lists, mappings, dataclasses, enums or paths"
    return TemperError(f"{where}: a value of type {kind} has no stable identity; {advice}")
