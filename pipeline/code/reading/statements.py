"""Read a top-level statement; write statements that bind names or serve errors and imports."""

import ast
from collections.abc import Iterator

from pipeline.code.bindings import Import, everything, imported
from pipeline.code.form import Caught, Form, Message, Ref, Use, word_set
from pipeline.code.reading.definitions import Definitions
from pipeline.code.reading.expressions import LOG_LEVELS
from pipeline.code.reading.names import NAMESPACE_NAMES
from pipeline.code.reading.scopes import Home
from pipeline.code.reading.syntax import (
    called,
    dotted,
    inside,
    last_name,
    makes_logger,
    names_of_types,
)

_RISKY = word_set("""
    Exception BaseException TypeError NameError UnboundLocalError RuntimeError AttributeError
    ImportError ModuleNotFoundError ExceptionGroup
""")
"""Exceptions whose messages by the interpreter contain names of functions and modules."""
_OF_IMPORTS = word_set("ImportError ModuleNotFoundError Exception BaseException")
"""Exceptions with which code goes on after an import that failed."""
_LOOKS_UP_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})


def read(node: ast.stmt, home: Home) -> tuple[Form, frozenset[str]]:
    """The form of a top-level statement, and its traits."""
    names = {getattr(n, "id", getattr(n, "attr", "")) for n in everything(node)}
    # the names of local variables have no effect, unless something looks them up
    reader = Statements(home, renames=names.isdisjoint(_LOOKS_UP_LOCALS | NAMESPACE_NAMES))
    reader.write(node)
    return reader.form(), frozenset(reader.traits)


class Statements(Definitions):
    """Writes statements, and so whatever a module holds."""

    def write_Import(self, node: Import) -> None:
        self.emit("(Import")
        self.write_loads(node)
        for local, (module, *name) in imported(node, self.package):
            scope = self.scopes[-1] if self.scopes else None
            if local == "*" or (scope is not None and local in scope.imported):
                continue
            self.emit(" ")
            self.bind(self.mangled(local))
            if scope is not None and (scope.is_class or local in scope.globals | scope.nonlocals):
                self.refer(module, tuple(name))  # other code may read the name here
        self.emit(")")

    write_ImportFrom = write_Import

    def write_Expr(self, node: ast.Expr) -> None:
        """A call of a logger does not count at all if its arguments compute nothing."""
        call = node.value
        is_log = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in LOG_LEVELS
            and all(map(self.is_bare, [*call.args, *(word.value for word in call.keywords)]))
        )
        owners = self.globals_of(call.func.value) if is_log else []  # type: ignore[union-attr]
        if len(owners) == 1:
            with self.part(lambda form: Message(owners[0], form)):
                self.write(call)
                self.emit(";")
        else:
            self.generic(node)

    def write_Assign(self, node: ast.Assign) -> None:
        if makes_logger(node.value):
            self.loggers.update(filter(None, map(dotted, node.targets)))
        self.generic(node)

    def write_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.read((node.target.id,))
        self.generic(node)

    def write_For(self, node: ast.For) -> None:
        self.list_names(node.target, node.iter, [*node.body, *node.orelse])
        self.generic(node)

    def write_Raise(self, node: ast.Raise) -> None:
        """The texts of an exception count only if some code reads such texts."""
        self.emit("(Raise")
        for name in ("exc", "cause"):
            value = getattr(node, name)
            if value is None:
                continue
            self.emit(f" {name}=")
            made_by = self.globals_of(value.func) if isinstance(value, ast.Call) else []
            if len(made_by) == 1:
                self.write_call_with_message(value, made_by[0])
            else:
                with self.using(Use.CALL):
                    self.write(value)
        self.emit(")")

    def write_Assert(self, node: ast.Assert) -> None:
        self.emit("(Assert test=")
        self.write(node.test)
        if node.msg is not None:
            self.emit(" msg=")
            self.write_message(node.msg, Ref(self.module, "AssertionError", Use.CALL))
        self.emit(")")

    def write_Try(self, node: ast.Try | ast.TryStar) -> None:
        caught = [names_of_types(handler.type) for handler in node.handlers]
        goes_on = any(not names or not _OF_IMPORTS.isdisjoint(names) for names in caught)
        self.write_trying(node, goes_on)

    write_TryStar = write_Try

    def write_With(self, node: ast.With) -> None:
        called_by = [called(item.context_expr) for item in node.items]
        self.write_trying(node, any(last_name(name) == "suppress" for name in called_by))

    def write_trying(self, node: ast.AST, goes_on: bool) -> None:
        before, self.tries = self.tries, self.tries or goes_on
        self.generic(node)
        self.tries = before

    def write_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.emit("(ExceptHandler")
        if node.type is not None:
            self.emit(" type=")
            with self.using(Use.CALL):
                self.write(node.type)
        if node.name:
            self.emit(" name=")
            self.bind(node.name)
            if uses := list(self.uses_of_error(node)):
                names = names_of_types(node.type)
                self.piece(Caught(not names or not _RISKY.isdisjoint(names), tuple(uses)))
        self.field("body", node.body)
        self.emit(")")

    def uses_of_error(self, handler: ast.ExceptHandler) -> Iterator[Ref | None]:
        """The functions that a handler passes the caught exception to, and ``None`` for any other
        use; raising it, or another exception from it, does not count."""
        spent = {id(n) for raised in inside(handler, ast.Raise) for n in everything(raised)}
        for call in inside(handler, ast.Call):
            owners = self.globals_of(call.func)
            for argument in call.args if len(owners) == 1 else ():
                if getattr(argument, "id", "") == handler.name and id(argument) not in spent:
                    spent.add(id(argument))
                    yield owners[0]
        for node in inside(handler, ast.Name):
            if node.id == handler.name and isinstance(node.ctx, ast.Load) and id(node) not in spent:
                yield None

    def write_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.generic(node, leave_out=["name"])
        if node.name:
            self.bind(node.name)

    write_MatchStar = write_MatchAs

    def write_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic(node, leave_out=["rest"])
        if node.rest:
            self.emit(" rest=")
            self.bind(node.rest)

    def write_MatchClass(self, node: ast.MatchClass) -> None:
        self.emit("(MatchClass cls=")
        with self.using(Use.CALL):
            self.write(node.cls)
        for name in ("kwd_attrs", "kwd_patterns", "patterns"):
            self.field(name, getattr(node, name))
        self.emit(")")
