"""Classes of argument values: their names in a key, and whether workers can rebuild their values.

A class of the project has its own name in a key, without its module: the trace names the module. A
class of a library, whose code is in no trace, keeps the name of its module.
"""

import abc
import dataclasses
import functools
import sys
import types
from dataclasses import dataclass
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.base.installed import in_library
from pipeline.base.references import reference_to

_INIT_VAR: Any = getattr(dataclasses, "_FIELD_INITVAR", None)
_METACLASSES = (type, abc.ABCMeta)
GENERATED = "<string>"
"""The file of the methods that :mod:`dataclasses` writes."""


@dataclass(frozen=True)
class DataclassType:
    """The properties of a dataclass, independent of its values.

    Attributes:
        reference: ``module:qualname``, with which a worker imports it.
        stands_for_itself: whether it has a method ``identity()``.
        is_plain: whether its constructor only sets its fields, so that rebuilding a value from its
            fields cannot change it.
        passing: cached properties, which are computed again on demand.
        slots: attributes that are neither fields nor in a ``__dict__``.
    """

    reference: str
    fields: tuple[dataclasses.Field, ...]
    names: frozenset[str]
    stands_for_itself: bool
    is_plain: bool
    passing: frozenset[str]
    slots: frozenset[str]

    def extras(self, value: Any) -> dict[str, Any]:
        """The attributes of a value that are not its fields."""
        held = getattr(value, "__dict__", {})
        found = {name: getattr(value, name) for name in self.slots if hasattr(value, name)}
        others = held.keys() - self.names - self.passing
        return found | {name: held[name] for name in sorted(others)}


@functools.cache
def dataclass_type(cls: type) -> DataclassType:
    """Raise `TemperError` if its fields do not describe a value, or no worker can import it."""
    known: dict[str, Any] = getattr(cls, "__dataclass_fields__")  # noqa: B009 (it has them)
    if any(field._field_type is _INIT_VAR for field in known.values()):
        raise TemperError(f"{cls.__name__} has an InitVar, which no value keeps; make it a field")
    if (base := _built_in_base(cls)) is not None:
        raise TemperError(
            f"{cls.__name__} is a dataclass and a {base.__name__} too, and what it holds as a "
            f"{base.__name__} is in no field; make that a field of a plain dataclass"
        )
    if unset := _undecorated(cls):
        raise TemperError(f"{cls.__name__}.{unset[0]} is no field: put @dataclass above the class")
    fields = dataclasses.fields(cls)
    own = "identity" not in known and callable(getattr(cls, "identity", None))
    names = frozenset(field.name for field in fields)
    slots = _attributes(cls, types.MemberDescriptorType)
    return DataclassType(
        reference=reference_to(cls),
        fields=fields,
        names=names,
        stands_for_itself=own,
        is_plain=_is_plain(cls, fields),
        passing=_attributes(cls, functools.cached_property),
        slots=slots - names,
    )


def _attributes(cls: type, kind: type) -> frozenset[str]:
    """The names of a class's attributes of one kind, inherited ones too."""
    found = (item for base in cls.__mro__ for item in vars(base).items())
    return frozenset(name for name, attribute in found if isinstance(attribute, kind))


def _undecorated(cls: type) -> list[str]:
    """Names that a class annotates like fields, if only its base class is made a dataclass."""
    if "__dataclass_fields__" in vars(cls):
        return []
    annotated = vars(cls).get("__annotations__", {})
    return [name for name, kind in annotated.items() if "ClassVar" not in str(kind)]


@functools.cache
def name_in_key(cls: type, home: str = "") -> str:
    """The name of a class in a key: its own name, and for a class of a library its module too.

    Args:
        home: the module of the step function, whose package does not count as a library.

    Raises:
        TemperError: no worker can import it.
    """
    reference = reference_to(cls)
    module, _, name = reference.partition(":")
    package = module.partition(".")[0]
    if package in (home.partition(".")[0], __name__.partition(".")[0]):
        return name
    return reference if is_of_library(cls) else name


def is_of_library(cls: type) -> bool:
    """Whether a class belongs to an installed package or to Python."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return cls.__module__ != "__main__" and (file is None or in_library(file))


def _built_in_base(cls: type) -> type | None:
    """A builtin base of a class that keeps state outside of attributes, such as list or float."""
    for base in cls.__mro__:
        if base is not object and isinstance(vars(base).get("__new__"), types.BuiltinFunctionType):
            return base
    return None


def _is_plain(cls: Any, fields: tuple[dataclasses.Field, ...]) -> bool:
    return (
        type(cls) in _METACLASSES
        and cls.__new__ is object.__new__
        and not hasattr(cls, "__post_init__")
        and _is_generated(cls.__init__)
        and (cls.__setattr__ is object.__setattr__ or _is_generated(cls.__setattr__))
        and cls.__getattribute__ is object.__getattribute__
        and all(field.init and is_stored(cls, field.name) for field in fields)
    )


def _is_generated(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename == GENERATED


def is_stored(cls: type, name: str) -> bool:
    """Whether an attribute is stored as assigned, and is no property or other descriptor."""
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return isinstance(found, types.MemberDescriptorType) or not (
        hasattr(type(found), "__set__") or hasattr(type(found), "__get__")
    )
