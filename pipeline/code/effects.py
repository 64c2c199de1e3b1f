"""What importing a module does besides binding names.

A statement that binds nothing acts. So does a definition or an assignment that reaches into
something else of the project while it runs:

- what it defines is handed to a decorator, metaclass or base, which may take note of it;
- it calls a method of a *table*, which is a container or an object of the project that a module
  makes (``_ = TABLE.setdefault("a", 1)``), or a project function that changes what it is given;
- it calls a project function that changes what is not its own;
- it stores through a name for something made elsewhere (``T = other.TABLE; T["a"] = 1``).

Calls are followed once: what a function calls that is called here is not looked into.
"""

import ast

from pipeline.code.execution import Call
from pipeline.code.meaning import Project, Target
from pipeline.code.names import Reference, dotted, last_name
from pipeline.code.statement import Statement

_READERS = frozenset({"get", "items", "keys", "values", "copy", "index", "count"})
_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
_CONTAINERS = frozenset(
    {"dict", "list", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque"}
    | {"ChainMap", "SimpleNamespace", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary"}
)
_CONSTRUCTORS = ("__new__", "__init__", "__post_init__")

_Path = tuple[str, ...]


class Effects:
    """The effects of importing each module of a project.

    Attributes:
        subclasses_matter: some code asks a class for its subclasses, so making one is an effect.
    """

    def __init__(self, project: Project):
        self.project = project
        self.subclasses_matter = False
        self._found: dict[tuple[str, bool], tuple[Statement, ...]] = {}

    def of(self, module: str) -> tuple[Statement, ...]:
        """The statements by which importing a module does something besides binding names."""
        key = module, self.subclasses_matter
        source = self.project.module(module)
        if source is None:
            return ()
        if key not in self._found:
            parts = (*source.effects, *filter(self._acts, source.possible_effects))
            self._found[key] = tuple(sorted(parts, key=lambda part: part.place))
        return self._found[key]

    def _acts(self, statement: Statement) -> bool:
        return (
            any(self._is_own(decorator) for decorator in statement.decorators)
            or self._is_hooked(statement, frozenset())
            or any(self._call_acts(statement.module, call) for call in statement.calls)
            or any(self._is_alias(statement.module, name) for name in statement.stores)
        )

    # what takes note of a definition

    def _is_hooked(self, statement: Statement, seen: frozenset[Target]) -> bool:
        """Whether a class has a metaclass of the project, or a base that hooks its subclasses."""
        if any(map(self._is_own, statement.metaclass)):
            return True
        if self.subclasses_matter and any(map(self._is_own, statement.bases)):
            return True
        meaning = self.project.meaning
        bases = {base for reference in statement.bases for base in meaning(reference)} - seen
        return any(
            part.has_subclass_hook or self._is_hooked(part, seen | bases)
            for base in bases
            for part in self._parts(base)
        )

    # what a call changes

    def _call_acts(self, module: str, call: Call) -> bool:
        *owner, method = call.path
        if owner and method not in _READERS and self._is_table(module, tuple(owner)):
            return True
        called = [target for target in self._targets(module, call.path) if not target.library]
        given = any(self._is_table(module, path) for path in call.arguments)
        return any(self._changes_others(target, given) for target in called)

    def _changes_others(self, target: Target, given: bool) -> bool:
        """Whether a function, a method, or the constructor of a class does."""
        methods = target.rest[:1] or _CONSTRUCTORS
        return any(
            changes.stores
            or (given and changes.arguments)
            or any(self._is_table(part.module, path) for path in changes.mutated)
            for part in self._parts(target)
            for changes in part.changes(methods)
        )

    # what a name stands for

    def _is_table(self, module: str, path: _Path, seen: frozenset[Target] = frozenset()) -> bool:
        """Whether it is an attribute of a class, or a name for what can be changed in place."""
        targets = set(self._targets(module, path)) - seen
        return any(
            bool(target.rest)
            if part.is_class
            else any(
                self._makes_table(part.module, value, seen | targets)
                for value in part.values(str(target.name))
            )
            for target in targets
            for part in self._parts(target)
        )

    def _makes_table(self, module: str, value: ast.expr, seen: frozenset[Target]) -> bool:
        if isinstance(value, ast.Call):
            return last_name(value.func) in _CONTAINERS or self._is_project(module, value.func)
        path = dotted(value)
        return isinstance(value, _DISPLAYS) or bool(path and self._is_table(module, path, seen))

    def _is_alias(self, module: str, name: str) -> bool:
        """Whether a name of a module may stand for something made elsewhere."""
        source = self.project.module(module)
        return source is not None and (
            name in source.names
            or any(
                self._is_elsewhere(module, value)
                for part in source.units.get(name, ())
                for value in part.values(name)
            )
        )

    def _is_elsewhere(self, module: str, value: ast.expr) -> bool:
        if isinstance(value, ast.IfExp | ast.BoolOp | ast.Tuple):
            parts = (part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))
            return any(self._is_elsewhere(module, part) for part in parts)
        if isinstance(value, ast.Call):
            owner = getattr(value.func, "value", value.func)
            return self._is_table(module, dotted(owner) or ()) or not all(
                part.is_class for target in self._called(module, value) for part in target
            )
        return isinstance(value, ast.Name | ast.Attribute | ast.Subscript)

    def _called(self, module: str, call: ast.Call) -> list[tuple[Statement, ...]]:
        return [self._parts(target) for target in self._targets(module, dotted(call.func) or ())]

    def _is_project(self, module: str, node: ast.expr) -> bool:
        path = dotted(node)
        return bool(path) and any(not target.library for target in self._targets(module, path))

    def _is_own(self, reference: Reference) -> bool:
        """Whether it is, or may be, something of the project."""
        return any(not target.library for target in self.project.meaning(reference))

    def _targets(self, module: str, path: _Path) -> tuple[Target, ...]:
        return self.project.resolve(module, path) if path else ()

    def _parts(self, target: Target) -> tuple[Statement, ...]:
        return self.project.units(target.module).get(str(target.name), ())
