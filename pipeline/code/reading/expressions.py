"""Write calls, messages, constants and other expressions."""

import ast
import re
from collections.abc import Iterable
from contextlib import suppress

from pipeline.code.bindings import Comprehension, everything, own_scope
from pipeline.code.form import Dynamic, Message, Reader, Ref, Use, word_set
from pipeline.code.reading.names import Names
from pipeline.code.reading.scopes import Scope
from pipeline.code.reading.syntax import (
    dotted,
    inside,
    is_type_of,
    joined,
    last_name,
    name_of_module,
)

_KEEPS = word_set("""
    isinstance issubclass map filter sorted min max sum any all list tuple set frozenset dict
    zip enumerate reversed callable partial reduce cmp_to_key field cast suppress super len iter
""")
"""Functions that use a function or class argument only for its effects, and read nothing of it."""
_KEEPING_KEYWORDS = frozenset({"key", "default_factory"})
_GIVEN_ERRORS = frozenset({"error_callback", "retry_error_callback"})
"""Keyword arguments that are called with exceptions."""
LOG_LEVELS = word_set("debug info warning warn error exception critical log")
_VARIABLE = re.compile(r"@([^\W\d]\w*)")
"""The name of a variable in a query of pandas."""
_TEXTS = frozenset({"str", "repr", "format", "print", "ascii"})


class Expressions(Names):
    """Writes expressions."""

    def write_Call(self, node: ast.Call) -> None:
        name = last_name(node.func)
        method = getattr(node.func, "attr", name)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if method in _TEXTS and any(map(is_type_of, arguments)):
            self.traits.add(Reader.MODULES)
        if method == "exception" and not arguments:
            self.traits.add(Reader.TEXTS)  # `exception()` of a future
        if method in ("query", "eval"):
            self.refer_to_variables(arguments)
        is_constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
        if name == "__import__" and is_constant:
            self.listed.add(id(node.func))
        elif (dotted(node.func) or ())[-2:-1] == ("modules",) and node.args:
            self.refer_to_loaded(node.func, node.args[0])
        if name in ("getattr", "vars"):
            self.refer_to_attribute(arguments)
        if name in ("vars", "locals") and not (node.args or self.scopes):
            self.refer(self.module, ())
        if name == "getLogger" and any(last_name(argument) == "__name__" for argument in arguments):
            node = ast.Call(node.func, [], [])
        if name in LOG_LEVELS and isinstance(node.func, ast.Attribute):
            self.write_log(node)
        elif name == "type" and len(node.args) == 1 and self.is_own(node.args[0]):
            self.traits.add(Reader.ITSELF)
            self.emit("(Type self)")
        elif name == "type" and len(node.args) == 1 and id(node) in self.compared:
            self.emit("(Type ")
            self.write(node.args[0])
            self.emit(")")
        else:
            self.write_any_call(node, keeps=name in _KEEPS)
        if texts := tuple(filter(None, map(name_of_module, arguments))):
            for function in self.globals_of(node.func):
                self.piece(Dynamic(function, texts, self.package))

    def write_any_call(self, node: ast.Call, keeps: bool = False) -> None:
        self.emit("(Call func=")
        self.called.add(id(node.func))
        use = Use.MADE if self.use == Use.SHOWN else Use.CALL
        use = Use.LISTED if id(node) in self.listed else use
        with self.using(use if self.use != Use.HINT else Use.HINT):
            self.write(node.func)
        is_text = last_name(node.func) in _TEXTS
        for argument in node.args:
            self.emit(" ")
            with self.using(Use.SHOWN if is_text else Use.CALL if keeps else Use.VALUE):
                self.write(argument)
        for keyword in node.keywords:
            self.emit(f" {keyword.arg or '**'}=")
            if keyword.arg in _GIVEN_ERRORS:
                self.traits.add(Reader.TEXTS)
            kept = keeps or keyword.arg in _KEEPING_KEYWORDS
            with self.using(Use.CALL if kept else Use.VALUE):
                self.write(keyword.value)
        self.emit(")")

    def write_log(self, node: ast.Call) -> None:
        """A call that may be one of a logger, whose texts do not count."""
        owners = self.globals_of(node.func.value)  # type: ignore[attr-defined]
        if len(owners) == 1:
            self.write_call_with_message(node, owners[0])
        else:
            self.write_any_call(node)

    def is_bare(self, node: ast.expr) -> bool:
        """Whether an expression consists of constants and local variables."""
        kinds = ast.Constant | ast.Name | ast.JoinedStr | ast.FormattedValue
        return all(
            isinstance(inner, kinds | ast.Mod | ast.BinOp | ast.Tuple | ast.expr_context)
            and not (isinstance(inner, ast.Name) and self.lookup(inner.id) is None)
            for inner in ast.walk(node)
        )

    def write_call_with_message(self, node: ast.Call, receiver: Ref) -> None:
        """A call whose texts count only if some code reads such texts."""
        self.emit("(Call func=")
        with self.using(Use.CALL):
            self.write(node.func)
        for argument in node.args:
            self.emit(" ")
            self.write_message(argument, receiver)
        for keyword in node.keywords:
            self.emit(f" {keyword.arg or '**'}=")
            self.write_message(keyword.value, receiver)
        self.emit(")")

    def write_message(self, node: ast.expr, receiver: Ref) -> None:
        match node:
            case ast.Constant(value=str(text)):
                self.piece(Message(receiver, (ascii(text),)))
            case ast.JoinedStr(values=values):
                self.emit("(Joined ")
                for part in joined(values):
                    self.write_message(part, receiver)
                self.emit(")")
            case ast.BinOp(left, ast.Add() | ast.Mod() as operator, right):
                self.emit(f"({type(operator).__name__} ")
                self.write_message(left, receiver)
                self.emit(" ")
                self.write_message(right, receiver)
                self.emit(")")
            case _:
                self.write(node)

    def refer_to_attribute(self, arguments: list[ast.expr]) -> None:
        """``getattr(a, "b")`` refers to ``a.b``, and ``vars(a)`` to ``a.__dict__``."""
        match arguments:
            case [owner, ast.Constant(str(name)), *_]:
                attribute = name
            case [owner]:
                attribute = "__dict__"
            case _:
                return
        for ref in self.globals_of(owner):
            self.refer(ref.module, (*ref.parts, attribute))

    def refer_to_variables(self, arguments: list[ast.expr]) -> None:
        """``frame.query("a > @LIMIT")`` refers to ``LIMIT``."""
        for argument in arguments:
            for text in inside(argument, ast.Constant):
                for name in _VARIABLE.findall(text.value) if isinstance(text.value, str) else ():
                    if self.lookup(name) is None:
                        self.refer(self.module, (name,))

    def refer_to_loaded(self, modules: ast.expr, name: ast.expr) -> None:
        """Refer to a module that is read from ``sys.modules``, if its name is known. If it is not,
        ``sys.modules`` stands for any module."""
        if isinstance(name, ast.Constant):
            self.refer(str(name.value), ())
        if isinstance(name, ast.Constant) or getattr(name, "id", "") == "__name__":
            self.listed.add(id(modules))

    def write_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, str):
            self.note(value)
            if self.use == Use.HINT:
                with suppress(SyntaxError, ValueError):  # a text that is no annotation
                    self.write(ast.parse(value, mode="eval"))
                    return
        self.emit(_literal(value))

    def write_JoinedStr(self, node: ast.JoinedStr) -> None:
        if any(isinstance(p, ast.FormattedValue) and is_type_of(p.value) for p in node.values):
            self.traits.add(Reader.MODULES)
        match joined(node.values):
            case []:
                self.emit(_literal(""))
            case [ast.Constant(text)]:
                self.emit(_literal(text))
            case parts:
                self.emit("(JoinedStr ")
                self.write(parts)
                self.emit(")")

    def write_FormattedValue(self, node: ast.FormattedValue) -> None:
        self.emit(f"(FormattedValue {node.conversion} ")
        with self.using(Use.SHOWN):
            self.write(node.value)
        self.field("format_spec", node.format_spec)
        self.emit(")")

    def write_Compare(self, node: ast.Compare) -> None:
        """A comparison of a value's type does not read the declarations of the type."""
        if all(isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) for op in node.ops):
            self.compared |= {id(side) for side in (node.left, *node.comparators)}
        if all(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            self.listed |= {id(s) for s in node.comparators if last_name(s) == "modules"}
        self.generic(node)

    def write_BinOp(self, node: ast.BinOp) -> None:
        match node:
            case ast.BinOp(ast.Constant(value=str(one)), ast.Add(), ast.Constant(value=str(two))):
                self.note(one + two)
            case ast.BinOp(ast.Constant(value=str()), ast.Mod(), right):
                self.emit("(Mod ")
                self.write(node.left)
                with self.using(Use.SHOWN):
                    self.write(right)
                self.emit(")")
                return
        self.generic(node)

    def write_UnaryOp(self, node: ast.UnaryOp) -> None:
        match node:
            case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.In()], right)):
                self.generic(ast.Compare(left, [ast.NotIn()], right))
            case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.Is()], right)):
                self.generic(ast.Compare(left, [ast.IsNot()], right))
            case _:
                self.generic(node)

    def write_Subscript(self, node: ast.Subscript) -> None:
        kind = last_name(node.value)
        if kind == "modules":
            if isinstance(node.ctx, ast.Load):
                self.refer_to_loaded(node.value, node.slice)
            else:
                self.listed.add(id(node.value))
        self.emit("(Subscript value=")
        with self.using(Use.HINT if self.use == Use.HINT else Use.CALL):
            self.write(node.value)
        self.emit(" slice=")
        is_data = kind == "Literal"
        with self.using(Use.HINT if self.use == Use.HINT and not is_data else Use.VALUE):
            if kind == "Annotated" and isinstance(node.slice, ast.Tuple):
                self.write(node.slice.elts[0])
                with self.using(Use.VALUE):
                    self.write(node.slice.elts[1:])
            else:
                self.write(node.slice)
        self.emit(")")

    def write_comprehension_of(self, node: Comprehension, made: list[ast.expr]) -> None:
        first, *others = node.generators
        self.list_names(first.target, first.iter, [*first.ifs, *others, *made])
        self.emit(f"({type(node).__name__} ")
        self.write(first.iter)  # in the scope around the comprehension
        scope = Scope()
        for generator in node.generators:
            scope.bind(own_scope(generator.target), self.package)
        with self.scope(scope):
            for value in (first.is_async, first.target, first.ifs, others, made):
                self.emit(" ")
                self.write(value)
        self.emit(")")

    def list_names(self, target: ast.expr, items: ast.expr, uses: Iterable[ast.AST]) -> None:
        """Note a loop that only reads the names of the items, for example over the fields of a
        dataclass: the names of an argument's fields are in the key already."""
        if not (isinstance(target, ast.Name) and isinstance(items, ast.Call)):
            return
        nodes = [node for use in uses for node in everything(use)]
        named = {
            id(node.value)
            for node in nodes
            if isinstance(node, ast.Attribute) and node.attr == "name"
        }
        if all(id(node) in named for node in nodes if getattr(node, "id", "") == target.id):
            self.listed.add(id(items))

    def write_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> None:
        self.write_comprehension_of(node, [node.elt])

    write_SetComp = write_GeneratorExp = write_ListComp

    def write_DictComp(self, node: ast.DictComp) -> None:
        self.write_comprehension_of(node, [node.key, node.value])


def _literal(value: object) -> str:
    """The text of a constant; constants of different type or value have different texts.

    ``repr`` does not serve: the characters that it escapes depend on Python's Unicode tables, and
    Python limits the number of decimal digits of an int.
    """
    return hex(value) if type(value) is int else ascii(value)
