"""Classes of argument values: what a key calls them, and which of them can be rebuilt elsewhere.

A class of the project is known by its own name, wherever it lies: its code is in the key. A class
of a library, whose code is not, keeps the name of its module.
"""

import abc
import dataclasses
import functools
import sys
import types
import typing
from dataclasses import dataclass
from typing import Any

from pipeline.errors import TemperError
from pipeline.references import reference_to

_INIT_VAR: Any = getattr(dataclasses, "_FIELD_INITVAR", None)
_METACLASSES = (type, abc.ABCMeta)
_GENERATED = "<string>"
"""The file of the methods that :mod:`dataclasses` writes."""


@dataclass(frozen=True)
class DataclassType:
    """What there is to know of a dataclass, whatever its values.

    Attributes:
        reference: ``module:qualname``, for whoever rebuilds a value.
        stands_for_itself: it has a method ``identity()``.
        is_plain: making one does nothing but set its fields, so that a value rebuilt from them is
            the same again.
        passing: attributes that are worked out again when they are asked for.
        slots: attributes that lie in no ``__dict__`` and are no fields.
        floats: fields that are annotated as a float, for :func:`as_taken`.
    """

    reference: str
    fields: tuple[dataclasses.Field, ...]
    names: frozenset[str]
    stands_for_itself: bool
    is_plain: bool
    passing: frozenset[str]
    slots: frozenset[str]
    floats: frozenset[str]

    def held(self, value: Any, name: str, absent: Any) -> Any:
        """What a field of a value holds, as its annotation means it; `absent` if nothing."""
        return self.meant(name, getattr(value, name, absent))

    def meant(self, name: str, held: Any) -> Any:
        return as_taken(held, float) if name in self.floats else held

    def extras(self, value: Any) -> dict[str, Any]:
        """Attributes of a value that are no fields of it."""
        held = getattr(value, "__dict__", {})
        found = {name: getattr(value, name) for name in self.slots if hasattr(value, name)}
        if held.keys() <= self.names:
            return found
        others = held.keys() - self.names - self.passing
        return {**found, **{name: held[name] for name in sorted(others)}}


@functools.cache
def dataclass_type(cls: type) -> DataclassType:
    """
    Raises:
        TemperError: its fields do not wholly describe a value, or no worker can import it.
    """
    known: dict[str, Any] = getattr(cls, "__dataclass_fields__")  # noqa: B009 (it has them)
    if any(field._field_type is _INIT_VAR for field in known.values()):
        raise TemperError(f"{cls.__name__} has an InitVar, which no value keeps; make it a field")
    if (base := _built_in_base(cls)) is not None:
        raise TemperError(
            f"{cls.__name__} is a dataclass and a {base.__name__} too, and what it holds as a "
            f"{base.__name__} is in no field; make that a field of a plain dataclass"
        )
    fields = dataclasses.fields(cls)
    own = "identity" not in known and callable(getattr(cls, "identity", None))
    lazy = {
        name
        for base in cls.__mro__
        for name, attribute in vars(base).items()
        if isinstance(attribute, functools.cached_property)
    }
    names = frozenset(field.name for field in fields)
    slots = {
        name
        for base in cls.__mro__
        for name, attribute in vars(base).items()
        if isinstance(attribute, types.MemberDescriptorType)
    }
    return DataclassType(
        reference=reference_to(cls),
        fields=fields,
        names=names,
        stands_for_itself=own,
        is_plain=_is_plain(cls, fields),
        passing=frozenset(lazy),
        slots=frozenset(slots - names),
        floats=_floats(cls),
    )


def as_taken(value: Any, annotation: Any) -> Any:
    """A value as what takes it means it: ``1``, where a float is taken, is ``1.0``, so that both
    have one key and the step gets one value. An integer that no float equals stays what it is."""
    if type(value) is not int or not _is_float(annotation):
        return value
    try:
        return float(value) if float(value) == value else value
    except OverflowError:
        return value


def _is_float(annotation: Any) -> bool:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = set(typing.get_args(annotation)) if is_union else {annotation}
    return float in options and options <= {float, type(None)}


def _floats(cls: Any) -> frozenset[str]:
    try:
        hints = typing.get_type_hints(cls)
    except Exception:  # a name that exists for the type checker only
        return frozenset()
    return frozenset(name for name, annotation in hints.items() if _is_float(annotation))


@functools.cache
def name_in_key(cls: type, home: str = "") -> str:
    """What a key calls a class: its name, and of a library's class its module too.

    Args:
        home: the module of the step function, whose package is no library to it.

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
    """Whether a class lies in an installed package or comes with Python."""
    from pipeline.code.modules import in_library  # which builds on this room

    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return cls.__module__ != "__main__" and (file is None or in_library(file))


def _built_in_base(cls: type) -> type | None:
    """What a class is besides, if that keeps something outside of attributes: a list, a float."""
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
        and all(field.init and _is_stored(cls, field.name) for field in fields)
    )


def _is_generated(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename == _GENERATED


def _is_stored(cls: type, name: str) -> bool:
    """Whether an attribute is what was assigned, and no property that makes something of it."""
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return isinstance(found, types.MemberDescriptorType) or not (
        hasattr(type(found), "__set__") or hasattr(type(found), "__get__")
    )
