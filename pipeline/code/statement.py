"""One statement at the top level of a module, with what can be asked of it.

It has a *normal form* (:mod:`pipeline.code.normal`) and *references* (:mod:`pipeline.code.names`),
worked out once. Where part of what it says arrives in the arguments of a step and is known by
value there, a statement without that part stands in for it.
"""

import ast
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from pipeline.code import execution
from pipeline.code.bindings import Definition, Function, Imported, own_scope
from pipeline.code.names import Names, Reference, dotted, names_in
from pipeline.code.normal import normal_form

_NOT_STORED = ("ClassVar", "InitVar")
_NAMES_OF_TYPES = frozenset({"__name__", "__qualname__", "__module__"})
_LOOKS_AT_TYPES = frozenset({"__class__", "__annotations__", "__dataclass_fields__"})
_TYPE_READERS = frozenset(
    {"fields", "asdict", "astuple", "get_type_hints", "get_annotations", "signature"}
)
_READERS = (ast.Name, ast.Attribute, ast.Call, ast.Constant)
_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a module.

    Attributes:
        package: what relative imports in it start from.
        by_value: it is a dataclass whose instances are known by value, so that its fields are
            left out and its bases are, like it, only types.
    """

    node: ast.stmt
    module: str
    package: str
    by_value: bool = False

    @cached_property
    def normal_form(self) -> bytes:
        return normal_form(self.node).encode()

    @cached_property
    def documented_form(self) -> bytes:
        """The normal form with docstrings, for where they are read."""
        return normal_form(self.node, docstrings=True).encode()

    @cached_property
    def _readers(self) -> tuple[ast.AST, ...]:
        """What in it may read a name, kept: walking a tree takes longer than asking its nodes."""
        return tuple(node for node in ast.walk(self.node) if isinstance(node, _READERS))

    @cached_property
    def looks_at_types(self) -> bool:
        """Whether it may come from a value to the declarations of its type, as ``type(x)(n=1)``."""
        harmless = {
            id(node.value)
            for node in self._readers
            if isinstance(node, ast.Attribute) and node.attr in _NAMES_OF_TYPES
        }
        return any(
            _reads_type(node) and not (self.is_class and _reads_own_type(node))
            for node in self._readers
            if id(node) not in harmless
        )

    @cached_property
    def reads_docstrings(self) -> bool:
        return any(
            getattr(node, "attr", getattr(node, "id", "")) == "__doc__"
            or (isinstance(node, ast.Constant) and node.value == "__doc__")
            for node in self._readers
        )

    @cached_property
    def reaches_itself(self) -> bool:
        """Whether it is a class whose methods get at the class, and so at its declarations."""
        return self.is_class and any(
            _reads_own_type(node) or getattr(node, "id", "") == "classmethod"
            for node in self._readers
        )

    @property
    def references(self) -> frozenset[Reference]:
        return self._names.references

    @property
    def imports(self) -> frozenset[Imported]:
        """What is imported when it runs."""
        return self._names.imports

    @cached_property
    def _names(self) -> Names:
        return names_in(self.node, self.module, self.package, self.by_value)

    @property
    def place(self) -> tuple[int, int]:
        """Where it is in its file: line and column."""
        return self.node.lineno, self.node.col_offset

    @property
    def reads_early(self) -> bool:
        """Whether it may read names when its module is imported, not only when it is called."""
        if not isinstance(self.node, Function):
            return True
        arguments = self.node.args
        return bool(self.node.decorator_list or arguments.defaults or any(arguments.kw_defaults))

    @cached_property
    def calls(self) -> tuple[execution.Call, ...]:
        """The calls that may run when it does."""
        return tuple(execution.calls(self.node))

    @cached_property
    def stores(self) -> frozenset[str]:
        """The names of which it sets an item or attribute, or which it changes in place."""
        nodes = list(own_scope(self.node))
        stored = (node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store))
        changed = [node for node in stored if not isinstance(node, ast.Name)]
        changed += [node.target for node in nodes if isinstance(node, ast.AugAssign)]
        return frozenset(map(execution.root, changed))

    def values(self, name: str) -> tuple[ast.expr, ...]:
        """What it may bind to a name."""
        return tuple(execution.values(self.node, name))

    def changes(self, methods: Iterable[str]) -> Iterator[execution.Changes]:
        """What a function defined here changes outside itself; of a class, what its methods do."""
        for node in own_scope(self.node):
            if isinstance(node, Function):
                yield execution.changes(node)
        yield from map(execution.changes, filter(None, map(self._methods.get, methods)))

    @cached_property
    def reads_subclasses(self) -> bool:
        return any(
            getattr(node, "attr", getattr(node, "value", "")) == "__subclasses__"
            for node in self._readers
        )

    @cached_property
    def decorators(self) -> tuple[Reference, ...]:
        """The decorators of what it defines in its own scope, without their arguments."""
        return self._references(
            _called(decorator)
            for node in own_scope(self.node)
            if isinstance(node, Definition)
            for decorator in node.decorator_list
        )

    @cached_property
    def bases(self) -> tuple[Reference, ...]:
        """What a class is made from."""
        return self._references(self.node.bases if isinstance(self.node, ast.ClassDef) else ())

    @cached_property
    def metaclass(self) -> tuple[Reference, ...]:
        """The class of a class, where it names one."""
        keywords = self.node.keywords if isinstance(self.node, ast.ClassDef) else ()
        return self._references(word.value for word in keywords if word.arg == "metaclass")

    def _references(self, expressions: Iterable[ast.expr]) -> tuple[Reference, ...]:
        return tuple(Reference(self.module, path) for node in expressions if (path := dotted(node)))

    @property
    def is_definition(self) -> bool:
        return isinstance(self.node, Definition)

    @property
    def is_function(self) -> bool:
        return isinstance(self.node, Function)

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def has_subclass_hook(self) -> bool:
        """Whether it is a class with code that runs for each of its subclasses."""
        return "__init_subclass__" in self._methods

    def has_method(self, name: str) -> bool:
        """Whether it is a class with this method, for its instances."""
        return name in self._methods and not self._methods[name].decorator_list

    @cached_property
    def _methods(self) -> dict[str, Function]:
        body = self.node.body if isinstance(self.node, ast.ClassDef) else ()
        return {inner.name: inner for inner in body if isinstance(inner, Function)}

    @cached_property
    def without_fields(self) -> "Statement":
        """A dataclass less the fields that its constructor takes."""
        assert isinstance(self.node, ast.ClassDef)
        body = [inner for inner in self.node.body if not _is_field(inner)]
        return replace(self, node=_changed(self.node, body=body), by_value=True)

    def without_decorators(self, dropped: Iterable[Reference]) -> "Statement":
        """A function less the ``dropped`` of its decorators."""
        assert isinstance(self.node, Function)
        paths = {reference.path for reference in dropped}
        kept = [d for d in self.node.decorator_list if dotted(_called(d)) not in paths]
        return replace(self, node=_changed(self.node, decorator_list=kept))

    def without_defaults(self) -> "Statement":
        """A function less its parameters' defaults."""
        assert isinstance(self.node, Function)
        bare = _changed(self.node.args, defaults=[], kw_defaults=[])
        return replace(self, node=_changed(self.node, args=bare))


def _reads_type(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[_]):
            return True
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in _LOOKS_AT_TYPES or name in _TYPE_READERS
    return False


def _reads_own_type(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[ast.Name(id="self")]):
            return True
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in _LOOKS_AT_TYPES
    return False


def _called(decorator: ast.expr) -> ast.expr:
    """A decorator without its arguments."""
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _is_field(node: ast.stmt) -> bool:
    """Whether it declares a dataclass field that the constructor takes and the instance keeps."""
    if not isinstance(node, ast.AnnAssign):
        return False
    names = {
        getattr(inner, "attr", getattr(inner, "id", "")) for inner in ast.walk(node.annotation)
    }
    if names.intersection(_NOT_STORED):
        return False
    keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
    return not any(
        keyword.arg == "init"
        and isinstance(keyword.value, ast.Constant)
        and not keyword.value.value
        for keyword in keywords
    )


def _changed(node: _Node, **fields: object) -> _Node:
    """A copy of a node with other fields; the tree it is in stays as it is."""
    changed = copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
