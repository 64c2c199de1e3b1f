"""Write functions and classes, their defaults, annotations and docstrings."""

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pipeline.code.bindings import Definition, Function, bound, everything, own_scope, surely_bound
from pipeline.code.form import DETAIL, TYPE_MARKS, Bound, Decorator, Detail, Evaluated, Reader, Use
from pipeline.code.reading.expressions import Expressions
from pipeline.code.reading.scopes import Scope
from pipeline.code.reading.syntax import (
    called,
    calls,
    is_field,
    is_idle,
    last_name,
    only_a_dataclass,
    parameters,
    subscripted,
    uses_arguments,
    worked_with,
)


class Definitions(Expressions):
    """Writes definitions."""

    def write_FunctionDef(self, node: Function) -> None:
        with self.detail(node):
            self.write_function(node)

    write_AsyncFunctionDef = write_FunctionDef

    def write_ClassDef(self, node: ast.ClassDef) -> None:
        with self.detail(node):
            self.write_class(node)

    @contextmanager
    def detail(self, node: Definition) -> Iterator[None]:
        """Write a definition that may be an execution detail into a piece of its own."""
        names = [name for d in node.decorator_list for name in self.globals_of(called(d))]
        declaring = [name for name in names if name.path and name.parts[-1] == DETAIL]
        if len(declaring) != 1:
            yield
            return
        with self.part(lambda form: Detail(declaring[0], form)):
            yield

    def write_function(self, node: Function) -> None:
        self.write_decorators(node)
        self.emit(f"({type(node).__name__} ")
        if self.scopes:
            self.emit(node.name)
        else:
            self.piece(Bound(node.name))
            with self.when(Reader.NAMES):
                self.emit(node.name)
        self.write_defaults(node.args)
        with self.type_parameters(node):
            self.write_hints(node)
            if node.name in ("__exit__", "__aexit__") and uses_arguments(node):
                self.traits.add(Reader.TEXTS)
            self.write_docstring(node)
            self.write_body(node.args, node.body)
        self.emit(")")

    def write_Lambda(self, node: ast.Lambda) -> None:
        self.emit("(Lambda")
        self.write_defaults(node.args)
        self.write_body(node.args, [node.body])
        self.emit(")")

    def write_decorators(self, node: Definition) -> None:
        for decorator in node.decorator_list:
            named = self.globals_of(called(decorator))
            name = named[0] if len(named) == 1 else None
            with self.part(lambda form, name=name: Decorator(name, form)):
                self.emit("@")
                if isinstance(decorator, ast.Call):
                    self.write(decorator)
                else:
                    with self.using(Use.CALL):
                        self.write(decorator)

    def write_defaults(self, arguments: ast.arguments) -> None:
        """Write the names of the parameters, which callers may use, and then their defaults."""
        for kind in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            found = getattr(arguments, kind) or []
            names = [a.arg for a in (found if isinstance(found, list) else [found])]
            if names:
                self.emit(f" {kind}={','.join(names)}")
        if not (arguments.defaults or any(arguments.kw_defaults)):
            return

        def write() -> None:
            self.emit(" defaults=")
            self.write(arguments.defaults)
            self.write(arguments.kw_defaults)

        if self.scopes:
            write()
        else:
            with self.when(Reader.DEFAULTS):
                write()

    def write_hints(self, node: Function) -> None:
        """Annotations: references in them are followed; their text counts only if it is read."""
        hints = [argument.annotation for argument in parameters(node.args)] + [node.returns]
        for hint in hints:
            self.write_hint(hint)

    def write_hint(self, hint: ast.expr | None) -> None:
        with self.when(Reader.HINTS):
            self.emit(f"~{self.is_future}")
        if hint is None:
            return
        if not self.is_future and calls(hint):
            self.emit(" hint=")
            self.write(hint)  # evaluated with the definition
        else:
            with self.using(Use.HINT), self.when(Reader.HINTS):
                self.write(hint)
            self.name_only(hint)
            self.write_evaluated(hint)

    def write_evaluated(self, hint: ast.expr) -> None:
        """An annotation that may run code though it calls nothing, such as ``Registry["x"]``."""
        owners = [] if self.is_future else list(worked_with(hint))
        names = dict.fromkeys(name for owner in owners for name in self.globals_of(owner))
        is_known = self.is_future or not any(map(self.is_variable, subscripted(hint)))
        if names or not is_known:
            known = tuple(names) if is_known else None
            with self.part(lambda form: Evaluated(known, form)):
                self.emit(f" hint={ast.unparse(hint)!a}")  # a text in it may be any argument
                with self.using(Use.HINT):
                    self.write(hint)

    def is_variable(self, path: tuple[str, ...]) -> bool:
        """Whether a dotted name begins with a local variable, which may be anything."""
        found = self.lookup(path[0])
        return found is not None and not found[1]

    def write_docstring(self, node: Definition) -> None:
        first = node.body[0]
        if is_idle(first) and isinstance(getattr(first, "value", None), ast.Constant):
            value = first.value.value  # type: ignore[attr-defined]
            if isinstance(value, str):
                with self.when(Reader.DOCS):
                    self.emit(ascii(value))

    def write_body(self, arguments: ast.arguments, body: Iterable[ast.AST]) -> None:
        names = {argument.arg for argument in parameters(arguments)}
        scope = Scope({name: [] for name in names}, verbatim=names)
        body = [item for item in body if not is_idle(item)]
        scope.bind((inner for node in body for inner in own_scope(node)), self.package)
        self.emit(" body=")
        with self.scope(scope), self.using(Use.VALUE):
            self.write(body)

    def write_class(self, node: ast.ClassDef) -> None:
        self.write_decorators(node)
        self.emit("(ClassDef ")
        if self.scopes:
            self.emit(node.name)
        else:
            self.piece(Bound(node.name))
            with self.when(Reader.CLASSES):
                self.emit(node.name)
        if node.body and "__qualname__" in {getattr(n, "id", "") for n in everything(node)}:
            self.traits.add(Reader.NAMES)
        with self.type_parameters(node):
            self.emit(" bases=")
            for base in node.bases:
                with self.using(Use.BASE):
                    self.write(base)
                self.emit(",")
            for keyword in node.keywords:
                self.emit(f" {keyword.arg or '**'}=")
                self.write(keyword.value)
            self.write_docstring(node)
            self.emit(" body=[")
            is_top = not self.scopes
            self.classes.append(node.name)
            members = {
                name
                for statement in node.body
                for inner in own_scope(statement)
                for name in bound(inner)
            }
            with self.scope(Scope(is_class=True, members=members)) as scope:
                for statement in node.body:
                    if not is_idle(statement):
                        self.write_member(statement, is_top, node)
                    scope.bind(surely_bound(statement), self.package)
            self.classes.pop()
            self.emit("])")

    def write_member(self, node: ast.stmt, is_top: bool, owner: ast.ClassDef) -> None:
        if not isinstance(node, ast.AnnAssign):
            self.write(node)
            self.emit(",")
        elif is_top and is_field(node):
            with self.when(f"{Reader.FIELDS} {node.target.id}"):  # type: ignore[union-attr]
                self.write_field(node, owner)
        else:
            self.write_field(node, owner)

    def write_field(self, node: ast.AnnAssign, owner: ast.ClassDef) -> None:
        """A field of a class. Its annotation counts if it has a special marker, or if other code
        than the standard library's dataclasses may read it."""
        self.emit("(AnnAssign target=")
        self.write(node.target)
        self.emit(" value=")
        self.write(node.value)
        names = {last_name(inner) for inner in everything(node.annotation)}
        text = node.annotation.value if isinstance(node.annotation, ast.Constant) else ""
        if isinstance(text, str):
            names |= {mark for mark in TYPE_MARKS if mark in text}
        self.emit(f" marks={sorted(names.intersection(TYPE_MARKS))}")
        if (self.is_future or text) and not names.isdisjoint(TYPE_MARKS):
            self.emit(ascii(ast.unparse(node.annotation)))  # dataclasses look for certain texts
        with self.using(Use.HINT), self.collected() as named:
            self.write(node.annotation)
        for reference in named:  # whoever constructs the class may construct these too
            self.piece(reference._replace(use=Use.OWNED))
        if only_a_dataclass(owner) and (self.is_future or not calls(node.annotation)):
            with self.using(Use.HINT), self.when(Reader.HINTS):
                self.emit(f"~{self.is_future}")
                self.write(node.annotation)
            self.write_evaluated(node.annotation)
        else:
            self.emit(f" {self.is_future} annotation=")
            self.write(node.annotation)
        self.emit("),")

    def write_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Outside of classes, the annotation of a variable has no effect; a function does not even
        evaluate it."""
        if self.scopes and self.scopes[-1].is_class:
            self.generic(node)
            return
        if self.scopes:
            self.name_only(node.annotation)
        elif isinstance(node.target, ast.Name):
            self.write_hint(node.annotation)
        else:
            self.write(node.annotation)
        if node.value is not None:
            self.write(ast.Assign([node.target], node.value))
        elif isinstance(node.target, ast.Attribute | ast.Subscript):  # `f().x: int` calls f
            self.write(node.target.value)
            if isinstance(node.target, ast.Subscript):
                self.write(node.target.slice)

    @contextmanager
    def type_parameters(self, node: ast.AST) -> Iterator[None]:
        """The scope of ``[T]`` in ``def f[T]``, Python 3.12 and later."""
        found = getattr(node, "type_params", [])
        if not found:
            yield
            return
        names = {parameter.name for parameter in found}
        with self.scope(Scope({name: [] for name in names}, verbatim=names)):
            for parameter in found:
                self.emit(f" {type(parameter).__name__} {parameter.name}")
                for name in ("bound", "default_value"):
                    if (value := getattr(parameter, name, None)) is not None:
                        self.write_hint(value)
            yield
