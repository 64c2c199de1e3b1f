"""One encoding of argument values, with two readings.

Every value that a step function takes is encoded as JSON with tagged structures, so that equal
values give equal bytes in every process and on every machine:

- :func:`identity` is what bears on the key: a dataclass without its execution details, an input
  file as the digest of its content.
- :func:`portable` is what a worker needs to rebuild the value with :func:`restore`: every field,
  and where a file lies rather than what is in it.

A value without a stable identity (a function, an open handle, an object with the default
``repr``) is refused, naming the field, because hashing it would make a key that changes from run
to run or, worse, does not change when the value does. The order of a mapping is not part of its
identity, so ``restore`` always gives mappings sorted: a step cannot depend on what its key ignores.

A dataclass field that cannot change a result (device, worker count, checkpoint interval) is
declared with :func:`execution_detail`. One that was added when artifacts existed already is
declared with :func:`added_field`: while it holds the value that those implicitly had, their keys
stay. A dataclass may also define ``identity()``, returning what stands for it in the key in place
of its fields.
"""

import base64
import dataclasses
import enum
import importlib
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

import blake3

from pipeline.errors import TemperError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
EncodeInput = Callable[[Any], Json]
"""Encodes a reference to another step's output; ``None`` is returned for any other value."""


def execution_detail(default: Any) -> Any:
    """A dataclass field that says how a step runs and cannot change what it makes."""
    return dataclasses.field(default=default, metadata={"identity": False})


def added_field(default: Any, *, before: Any) -> Any:
    """A dataclass field that was added later and is left out of the key while it holds ``before``.

    Args:
        before: what results made without the field had, whatever the default is or becomes.
    """
    return dataclasses.field(default=default, metadata={"before": before})


def identity(
    value: Any,
    where: str,
    encode_input: EncodeInput = lambda _: None,
    types: set[type] | None = None,
) -> Json:
    """The part of ``value`` that bears on a key.

    Args:
        where: names the value in errors.
        types: collects every dataclass and enum met; their code can bear on the result too.

    Raises:
        TemperError: the value, or something within it, has no stable identity.
    """
    return _Encoder(encode_input, for_identity=True, types=types).encode(value, where)


def portable(value: Any, where: str, encode_input: EncodeInput = lambda _: None) -> Json:
    """Everything :func:`restore` needs to rebuild ``value`` in another process."""
    return _Encoder(encode_input, for_identity=False).encode(value, where)


def canonical_bytes(data: Json) -> bytes:
    """The bytes that are hashed: JSON with sorted keys, no spaces, ASCII only."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def same(one: Json, other: Json) -> bool:
    """Whether two encoded values are one: ``1``, ``1.0`` and ``True`` are three."""
    return canonical_bytes(one) == canonical_bytes(other)


def hash_json(data: Json) -> str:
    """BLAKE3 of the canonical bytes, 32 hexadecimal digits (128 bits)."""
    return blake3.blake3(canonical_bytes(data)).hexdigest()[:32]


def reference_to(definition: Any) -> str:
    """``module:qualname`` of a function or class, under a name that a worker can import.

    Raises:
        TemperError: it is defined inside a function, or in an interactive session.
    """
    module, qualname = definition.__module__, definition.__qualname__
    if "<" in qualname:
        raise TemperError(
            f"{module}.{qualname} is defined inside a function, where a worker cannot import it; "
            "move it to the top level of its module"
        )
    if module == "__main__":
        module = _script_module(qualname)
    return f"{module}:{qualname}"


def resolve_reference(reference: str) -> Any:
    """The function or class that ``module:qualname`` names."""
    module, _, qualname = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _script_module(qualname: str) -> str:
    """The name under which a worker, with the script's folder on its path, imports ``__main__``."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return spec.name
    file = getattr(main, "__file__", None)
    if file is None:
        raise TemperError(f"{qualname} is defined interactively; put it in a file")
    return Path(file).stem


_MAPPINGS = (dict, OrderedDict, MappingProxyType)
_INIT_VAR: Any = getattr(dataclasses, "_FIELD_INITVAR", None)


class _Encoder:
    def __init__(
        self, encode_input: EncodeInput, for_identity: bool, types: set[type] | None = None
    ):
        self.encode_input = encode_input
        self.for_identity = for_identity
        self.types = set() if types is None else types

    def encode(self, value: Any, where: str) -> Json:
        encoded = self.encode_input(value)
        if encoded is not None:
            return encoded
        match value:
            case enum.Enum():  # first: a str or int enum is more than its value
                if value not in type(value).__members__.values():  # a combination of flags
                    raise _no_identity(value, where)
                self.types.add(type(value))
                return {"$enum": f"{reference_to(type(value))}.{value.name}"}
            case None | bool() | int() | str():
                return self._plain(value, where)
            case float():
                number = float(value)  # NumPy's float64 is one, with another repr
                return number if math.isfinite(number) else {"$float": repr(number)}
            case bytes():
                return {"$bytes": base64.b64encode(value).decode()}
            case list() if type(value) is list:
                return self._items(value, where)
            case tuple() if type(value) is tuple:
                return {"$tuple": self._items(value, where)}
            case set() | frozenset() if type(value) in (set, frozenset):
                members = [self.encode(item, f"{where}{{}}") for item in value]
                return {f"${type(value).__name__}": sorted(members, key=canonical_bytes)}
            case Mapping() if type(value) in _MAPPINGS:  # another may carry more
                return self._mapping(value, where)
            case PurePath():
                return self._path(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, where)
        raise _no_identity(value, where)

    def _plain(self, value: Any, where: str) -> Json:
        if type(value) not in (type(None), bool, int, str):  # a subclass may carry more
            raise _no_identity(value, where)
        return value

    def _items(self, values: list | tuple, where: str) -> list[Json]:
        return [self.encode(item, f"{where}[{i}]") for i, item in enumerate(values)]

    def _mapping(self, value: Mapping, where: str) -> Json:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(value[key], f"{where}.{key}") for key in sorted(value)}
        pairs: list[Json] = [
            [self.encode(key, f"{where} (key)"), self.encode(item, f"{where}[{key!r}]")]
            for key, item in value.items()
        ]
        return {"$map": sorted(pairs, key=canonical_bytes)}

    def _path(self, value: PurePath) -> Json:
        if not self.for_identity:
            return {"$path": str(value)}
        from pipeline.inputs import File  # a path stands for the content of the file

        return self.encode(File(str(value)), str(value))

    def _dataclass(self, value: Any, where: str) -> Json:
        reference = reference_to(type(value))
        self.types.add(type(value))
        _require_rebuildable(value, where)
        if self.for_identity and hasattr(value, "identity"):
            return {"$type": reference, "identity": self.encode(value.identity(), where)}
        fields = {
            field.name: self.encode(getattr(value, field.name), f"{where}.{field.name}")
            for field in dataclasses.fields(value)
            if field.init and not (self.for_identity and self._is_detail(field, value, where))
        }
        return {"$type": reference, "fields": fields}

    def _is_detail(self, field: dataclasses.Field, value: Any, where: str) -> bool:
        """Whether a field bears on no result, or holds what it did before it existed."""
        if not field.metadata.get("identity", True):
            return True
        if "before" not in field.metadata:
            return False
        now, before = getattr(value, field.name), field.metadata["before"]
        return same(self.encode(now, f"{where}.{field.name}"), self.encode(before, where))


def restore(data: Json, restore_input: Callable[[Any], Any]) -> Any:
    """Rebuild what :func:`portable` encoded; ``{"$input": …}`` goes through ``restore_input``."""
    if isinstance(data, list):
        return [restore(item, restore_input) for item in data]
    if not isinstance(data, dict):
        return data
    tag = next((key for key in data if key.startswith("$")), None)
    content: Any = data.get(tag) if tag else None
    match tag:
        case None:
            return {key: restore(item, restore_input) for key, item in data.items()}
        case "$input":
            return restore_input(content)
        case "$float":
            return float(content)
        case "$bytes":
            return base64.b64decode(content)
        case "$tuple":
            return tuple(restore(item, restore_input) for item in content)
        case "$set":
            return {restore(item, restore_input) for item in content}
        case "$frozenset":
            return frozenset(restore(item, restore_input) for item in content)
        case "$map":
            return {restore(k, restore_input): restore(v, restore_input) for k, v in content}
        case "$path":
            return Path(content)
        case "$enum":
            return resolve_reference(content)
        case "$type":
            fields = restore(data["fields"], restore_input)
            return resolve_reference(content)(**fields)
    raise ValueError(f"unknown tag {tag!r} in an encoded value")


def _require_rebuildable(value: Any, where: str) -> None:
    """Refuse a dataclass that its constructor's arguments do not wholly describe."""
    known = type(value).__dataclass_fields__
    if any(field._field_type is _INIT_VAR for field in known.values()):
        raise TemperError(f"{where}: {type(value).__name__} has an InitVar, which no value keeps; "
                          "make it a field")  # fmt: skip
    derived = [
        field.name for field in known.values() if not field.init and field.name in vars(value)
    ]
    if not derived:
        return
    rebuilt = type(value)(**{f.name: getattr(value, f.name) for f in known.values() if f.init})
    for name in derived:
        if getattr(rebuilt, name, None) != getattr(value, name):
            raise TemperError(f"{where}.{name}: the field is not given to the constructor, and was "
                              "changed afterwards; a worker could not know")  # fmt: skip


def _no_identity(value: Any, where: str) -> TemperError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    advice = (
        "pass the name of a registered function, or a dataclass with its parameters"
        if callable(value)
        else "pass numbers, strings, lists, mappings, dataclasses, enums or paths"
    )
    return TemperError(f"{where}: a value of type {kind} has no stable identity; {advice}")
