"""Write names: local ones as numbers, all others as references to what they stand for."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.code.bindings import Imported
from pipeline.code.form import TRAITS_OF_NAMES, Bound, Reader, Ref, Use
from pipeline.code.reading.scopes import Scope
from pipeline.code.reading.syntax import dotted, is_super, is_type_of, makes_logger, typed
from pipeline.code.reading.writer import Writer

_ADDING = frozenset({"append", "extend", "insert"})
NAMESPACE_NAMES = frozenset({"__globals__", "f_globals", "f_locals", "__builtins__"})
_PLACES = frozenset({"__name__", "__file__", "__package__", "__spec__", "__path__", "__loader__"})


class Names(Writer):
    """Writes names and attributes, in the scopes that are entered."""

    def write_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read_as(node, (self.mangled(node.id),))
        else:
            self.bind(self.mangled(node.id))

    def mangled(self, name: str) -> str:
        """The name as the interpreter stores it: the class name is prefixed to a private name."""
        if self.classes and name.startswith("__") and not name.endswith("__"):
            self.traits.add(Reader.CLASSES)
            return f"_{self.classes[-1].lstrip('_')}{name}"
        return name

    def write_Attribute(self, node: ast.Attribute) -> None:
        path = dotted(node)
        if node.attr in ("__name__", "__qualname__") and is_type_of(node.value):
            self.traits.add(Reader.CLASSES)
            self.emit(f"({node.attr} of ")
            self.write(typed(node.value))
            self.emit(")")
            return
        self.note(self.mangled(node.attr), node.value)
        if self.may_add_filters(node):
            self.note("addFilter")
        if self.takes_values_away(node):
            self.traits.add(
                Reader.TYPES
            )  # an attribute that an instance lacks may be read from its class
        if node.attr in NAMESPACE_NAMES:
            self.refer(self.module, ())
        if not isinstance(node.ctx, ast.Load):
            self.emit(f"({type(node.ctx).__name__})")
            if path is not None:
                with self.using(Use.STORED):
                    self.read((self.mangled(path[0]), *path[1:]))
                return
        if path is None:
            if is_super(node.value) and id(node) not in self.called:
                self.traits.add(Reader.TYPES)  # it reads the default of a field
            if node.attr == "parameters":
                self.listed.add(id(node.value))  # of a signature
            with self.using(Use.CALL if self.use != Use.HINT else Use.HINT):
                self.emit("(Attribute attr=" + ascii(node.attr) + " value=")
                self.write(node.value)
                self.emit(")")
            return
        for number in range(1, len(path) - 1):
            self.note(path[number])
        self.read_as(node, (self.mangled(path[0]), *path[1:]))

    def note(self, name: str, owner: ast.AST | None = None) -> None:
        """Note the traits that an attribute, a name or a text implies."""
        traits = TRAITS_OF_NAMES.get(name, ())
        if name == "__class__" and self.is_own(owner):
            traits = (Reader.ITSELF,)
        self.traits.update(traits)

    def may_add_filters(self, node: ast.Attribute) -> bool:
        """Whether a logger's filters may be changed in place: those of anything, by ``append``, and
        those of what is known to be a logger."""
        if node.attr in _ADDING:
            return isinstance(node.value, ast.Attribute) and node.value.attr == "filters"
        return node.attr == "filters" and self.is_logger(node.value)

    def is_logger(self, node: ast.expr) -> bool:
        return makes_logger(node) or (dotted(node) or ()) in self.loggers

    def takes_values_away(self, node: ast.Attribute) -> bool:
        """Whether it may delete attributes: ``del x.a``, ``vars(x).clear()``, ``x.__init__()``."""
        owner = node.value
        if isinstance(node.ctx, ast.Del):
            return True
        if node.attr == "__init__":
            return isinstance(owner, ast.Name) and self.lookup(owner.id) is not None
        is_held = getattr(owner, "attr", "") == "__dict__" or (
            isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "vars"
        )
        return is_held and node.attr in ("clear", "pop", "popitem")

    def is_own(self, node: ast.AST | None) -> bool:
        """Whether it is the instance on which a method of the class is called."""
        is_method = any(scope.is_class for scope in self.scopes)
        return is_method and isinstance(node, ast.Name) and node.id == "self"

    def read_as(self, node: ast.expr, path: tuple[str, ...]) -> None:
        before, self.use = self.use, Use.LISTED if id(node) in self.listed else self.use
        self.read(path)
        self.use = before

    def read(self, path: tuple[str, ...]) -> None:
        found = self.lookup(path[0])
        if found is None:
            self.read_global(path)
            return
        scope, sources = found
        rest = "".join(f".{name}" for name in path[1:])
        if path[0] not in scope.imported:
            self.emit(f"(Local {self.local(scope, path[0])}{rest})")
        for module, *name in sources:
            self.refer(module, (*name, *path[1:]))

    def read_global(self, path: tuple[str, ...]) -> None:
        name = path[0]
        if name == "__doc__":
            self.emit(f"(Doc {self.docstring!a})")
        elif name in _PLACES:
            self.emit(f"(Place {name} {self.module})")
        elif name == "type" and self.use != Use.HINT:
            self.traits.add(Reader.TYPES)
        if name != "__import__" or self.use != Use.LISTED:
            self.note(name)
        self.refer(self.module, path)

    def refer(self, module: str, path: tuple[str, ...]) -> None:
        self.piece(Ref(module, ".".join(map(self.mangled, path)), self.use))

    def bind(self, name: str) -> None:
        scope = self.scopes[-1] if self.scopes else None
        self.note(name)
        if scope is not None and scope.is_class and name not in scope.globals | scope.nonlocals:
            self.emit(f"(Member {name})")
            return
        found = self.lookup(name)
        if found is None:
            self.piece(Bound(name))
        else:
            self.emit(f"(Local {self.local(found[0], name)})")

    def local(self, scope: Scope, name: str) -> str:
        """The text of a local name: a number, in order of first use."""
        if not self.renames or scope.is_class or name in scope.verbatim:
            return name
        number = self.locals.setdefault((scope.number, name), len(self.locals))
        return f"%{number}"

    def lookup(self, name: str) -> tuple[Scope, list[Imported]] | None:
        """The scope of a local name, with its sources if it is imported; ``None`` for a global."""
        for depth, scope in enumerate(reversed(self.scopes)):
            if scope.is_class and depth:
                continue  # methods do not see the names of their class
            if name in scope.globals:
                return None
            if name in scope.names:
                return scope, scope.names[name]
            if name in scope.members - scope.nonlocals:
                return None
        return None

    @contextmanager
    def scope(self, scope: Scope) -> Iterator[Scope]:
        self.entered += 1
        scope.number = self.entered
        self.scopes.append(scope)
        yield scope
        self.scopes.pop()

    def globals_of(self, node: ast.AST) -> list[Ref]:
        """The references that a dotted name stands for; empty for a local variable."""
        path = dotted(node)
        found = self.lookup(path[0]) if path else None
        if path is None:
            return []
        if found is None:
            return [Ref(self.module, ".".join(path), Use.CALL)]
        return [Ref(m, ".".join((*name, *path[1:])), Use.CALL) for m, *name in found[1]]

    def write_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        """Write nothing: each use of the names already tells their scope."""

    write_Nonlocal = write_Global
