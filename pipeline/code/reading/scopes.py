"""The local names of a function, class or comprehension, and the module around them."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.code.bindings import Definition, Import, Imported, bound, imported


@dataclass
class Scope:
    """The local names of a function, class or comprehension; for imported names, their sources.

    Attributes:
        verbatim: names that are written as they are: parameters, since callers may name them, and
            definitions, since these know their names.
        imported: names that only one import binds: references to its source replace them.
        members: names that a class body may bind. Until it does, they are globals, even if the
            function around the class has a variable of that name.
        number: the position of the scope among the scopes of its statement, in order of entry.
    """

    names: dict[str, list[Imported]] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    verbatim: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    is_class: bool = False
    number: int = 0

    def bind(self, nodes: Iterable[ast.AST], package: str) -> None:
        others = set(self.names)
        for node in nodes:
            if isinstance(node, ast.Global):
                self.globals.update(node.names)
            elif isinstance(node, ast.Nonlocal):
                self.nonlocals.update(node.names)
            elif isinstance(node, Import):
                for local, source in imported(node, package):
                    self.names.setdefault(local, []).append(source)
            else:
                if isinstance(node, Definition):
                    self.verbatim.add(node.name)
                for name in bound(node):
                    self.names.setdefault(name, [])
                    others.add(name)
        for name in self.globals | self.nonlocals:
            self.names.pop(name, None)
        if not self.is_class:
            found = self.names.items()
            self.imported |= {n for n, sources in found if len(sources) == 1} - others


@dataclass(frozen=True)
class Home:
    """The module that a statement is in.

    Attributes:
        package: the package that relative imports start from.
        docstring: the value of ``__doc__``.
        is_future: whether annotations are not evaluated (``from __future__ import annotations``).
    """

    module: str
    package: str
    docstring: str
    is_future: bool
