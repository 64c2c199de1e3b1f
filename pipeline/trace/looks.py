"""How code looks apart from names, places, documentation, hints and texts of messages.

Two traces whose code looks equal probably do the same: somebody renamed, moved, documented or
annotated something. That is a guess, so it only serves a suggestion; see ``RULE.md``.

The look of a part leaves out imports, texts of documentation, hints, options of ``@step``, and
texts in ``raise``, ``assert`` and calls of loggers. Names of variables in functions are numbered. A
name that the module binds or imports has its origin, for which the caller takes the look of what
the project defines there. Other names, attributes and keywords count.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import blake3

Origin = tuple[int, str, str, str]
"""An imported name with its first attribute: ``(level, module, name, attribute)``. The module is
empty for a name that the module itself binds."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_LOGS = frozenset(("debug", "info", "warning", "warn", "error", "exception", "critical", "log"))
_LEFT_OUT = ("ctx", "kind", "returns", "annotation", "type_comment", "type_params")
_NOTHING = "nothing"


class Looks:
    """The looks of parts of one module.

    Args:
        bindings: the names that its top level binds.
        aliases: the origin of each imported name.
    """

    def __init__(
        self, bindings: Collection[str], aliases: Mapping[str, tuple[tuple[int, str, str], ...]]
    ):
        self.bindings, self.aliases = bindings, aliases

    def of(
        self, nodes: Iterable[ast.AST], strip: bool, is_method: bool
    ) -> tuple[str, tuple[Origin, ...]]:
        """The look of some statements; empty if nothing is left.

        Args:
            strip: leave out bodies of functions.
            is_method: the statements are functions of a class, so their names are attributes.
        """
        look = _Look(self, strip)
        found = [form for node in nodes if (form := look.form(node, is_method)) != _NOTHING]
        if not found:
            return "", ()
        text = repr(found).encode("utf-8", "surrogatepass")
        return blake3.blake3(text).hexdigest()[:32], tuple(look.origins)


class _Look:
    def __init__(self, module: Looks, strip: bool):
        self.module, self.strip = module, strip
        self.origins: list[Origin] = []
        self.numbers: dict[tuple[int, str], int] = {}
        self.scopes = 0
        self.local: dict[str, tuple[int, str]] = {}

    def form(self, node: Any, in_class: bool = False, in_message: bool = False) -> Any:
        if isinstance(node, list):
            forms = [self.form(inner, in_class, in_message) for inner in node]
            return [form for form in forms if form != _NOTHING]
        if not isinstance(node, ast.AST):
            return node
        if _is_left_out(node):
            return _NOTHING
        if isinstance(node, ast.Constant):
            return "text" if in_message and isinstance(node.value, str) else repr(node.value)
        if isinstance(node, ast.JoinedStr) and in_message:
            return "text"
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute) and (imported := self._of_import(node)) is not None:
            return imported
        if isinstance(node, ast.AnnAssign):
            return ["Assign", [self.form(node.target, in_class)], self.form(node.value)]
        if isinstance(node, ast.Assign):
            return ["Assign", self.form(node.targets, in_class), self.form(node.value)]
        if isinstance(node, ast.Global | ast.Nonlocal):
            return [self._name(name) for name in node.names]
        is_message = isinstance(node, ast.Raise | ast.Assert) or _logs(node)
        return self._any(node, in_class, in_message or is_message)

    def _any(self, node: ast.AST, in_class: bool, in_message: bool) -> Any:
        outer = self.local
        if isinstance(node, _Scope):
            self.scopes += 1
            names = frozenset(_bound(node)) - self.module.aliases.keys()
            self.local = outer | {name: (self.scopes, name) for name in names}
        found: list[Any] = [type(node).__name__]
        for name, value in ast.iter_fields(node):
            if name in _LEFT_OUT or (name == "body" and self.strip and isinstance(node, _Function)):
                continue
            if name == "decorator_list":
                value = [decorator for decorator in value if not self._is_step(decorator)]
            if name in ("name", "arg") and isinstance(value, str):
                is_kept = isinstance(node, ast.keyword) or in_class
                value = value if is_kept else self._defined(value)
            inner_class = isinstance(node, ast.ClassDef) and name == "body"
            found.append((name, self.form(value, inner_class, in_message)))
        self.local = outer
        return found

    def _is_step(self, decorator: ast.expr) -> bool:
        """Whether this is ``@step``: its options are in keys, or change no result."""
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        alias = self.module.aliases.get(function.id, ()) if isinstance(function, ast.Name) else ()
        return alias == ((0, "pipeline", "step"),)

    def _name(self, name: str) -> Any:
        if name in self.local:
            return self.numbers.setdefault(self.local[name], len(self.numbers))
        if name in self.module.aliases:
            return self._imported(name, "")
        if name in self.module.bindings:
            self.origins.append((0, "", name, ""))
            return ["given", len(self.origins)]
        return ["name", name]

    def _defined(self, name: str) -> Any:
        return self._name(name) if name in self.local else "defined"

    def _of_import(self, node: ast.Attribute) -> Any:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        is_imported = name in self.module.aliases and name not in self.local
        return self._imported(name, node.attr) if is_imported else None

    def _imported(self, name: str, attribute: str) -> Any:
        self.origins += [(*at, attribute) for at in self.module.aliases[name]]
        return ["given", len(self.origins)]


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.Pass):
        return True
    if isinstance(node, ast.ImportFrom):
        return node.module != "__future__" and node.names[0].name != "*"
    value = node.value if isinstance(node, ast.Expr) else None
    if isinstance(value, ast.Call):
        return _logs(value) and not value.keywords and all(map(_is_text, value.args))
    return value is not None and _is_text(value)


def _logs(node: ast.AST) -> bool:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr in _LOGS  # type: ignore[attr-defined]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _bound(scope: ast.AST) -> Iterator[str]:
    """The names that a function binds, with those of functions inside it."""
    shared = {n for node in ast.walk(scope) if isinstance(node, ast.Global) for n in node.names}
    for node in ast.walk(scope):
        name: Any = None
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif node is not scope and isinstance(node, _Function | ast.ClassDef | ast.ExceptHandler):
            name = node.name
        if name and name not in shared:
            yield name
