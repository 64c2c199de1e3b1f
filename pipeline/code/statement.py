"""One top-level statement of a module, with the results of its analysis.

All attributes are computed once from the syntax tree. They are plain data and are cached on disk by
the content of the source (:mod:`pipeline.code.source`).
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from pipeline.code.acting import attributes, made, needs_of
from pipeline.code.bindings import Definition, Function, Import, bound, imported, loaded, own_scope
from pipeline.code.form import Form, Load, Need, Reader, Ref, Use
from pipeline.code.reading.scopes import Home
from pipeline.code.reading.statements import read
from pipeline.code.reading.syntax import called, dotted, is_field


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a module.

    Attributes:
        module: the module that contains it.
        place: its position among the statements of the module.
        kind: ``function``, ``class``, ``import`` or ``other``.
        form: its content; see :mod:`pipeline.code.form`.
        traits: what it reads of code; see :class:`pipeline.code.form.Reader`.
        binds: the global names that it binds.
        changes: global names whose objects it changes in place, or whose items or attributes it
            sets.
        names: the local name and the source of each import.
        stars: the modules of ``from module import *``.
        loads: the imports that run with it.
        needs: the conditions under which it only binds names; ``None`` if it acts in any case.
        needs_of_call: the needs of calling the function that it defines; ``None`` if that acts.
        needs_of_defaults: the needs of that function's defaults; ``None`` if they act.
        needs_of_result: the needs under which that function returns plain data, or ``None``.
        needs_of_making: the needs of constructing the dataclass that it defines, or ``None``.
        needs_of_data: the needs under which the value that it binds is plain data, or ``None``.
        makers: the functions that are called for the value that it binds.
        made: the names that it binds to a new object, which has no other name.
        attributes: the names that the class that it defines binds to plain values.
        reads_early: whether it may read names on import, and not only when it is called.
        decorators: the decorators in it, of methods too; ``None`` for one without a dotted name.
        own_decorators: how many of these decorate the definition itself, not its methods.
        bases: the bases of the class that it defines; ``None`` for one without a dotted name.
        metaclass: the metaclass of that class, if it names one.
        methods: the methods of that class without decorators.
        special: the methods of that class with names like ``__init__``.
        fields: the names in that class that are annotated like fields of a dataclass.
    """

    module: str
    place: int
    kind: str
    form: Form
    traits: tuple[str, ...]
    binds: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    names: tuple[tuple[str, Load], ...] = ()
    stars: tuple[str, ...] = ()
    loads: tuple[Load, ...] = ()
    needs: tuple[Need, ...] | None = ()
    needs_of_call: tuple[Need, ...] | None = None
    needs_of_defaults: tuple[Need, ...] | None = ()
    needs_of_result: tuple[Need, ...] | None = None
    needs_of_making: tuple[Need, ...] | None = None
    needs_of_data: tuple[Need, ...] | None = None
    makers: tuple[Ref, ...] = ()
    made: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    reads_early: bool = True
    decorators: tuple[Ref | None, ...] = ()
    own_decorators: int = 0
    bases: tuple[Ref | None, ...] = ()
    metaclass: tuple[Ref, ...] = ()
    methods: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def is_function(self) -> bool:
        return self.kind == "function"

    @property
    def is_class(self) -> bool:
        return self.kind == "class"

    @property
    def reaches_itself(self) -> bool:
        """Whether it is a class whose methods access the class itself, and so its declarations."""
        return self.is_class and Reader.ITSELF in self.traits


def make_statement(node: ast.stmt, place: int, home: Home) -> Statement:
    """Analyse the syntax tree of a statement."""
    module, package = home.module, home.package
    form, traits = read(node, home)
    names, stars, loads = _imports(node, package)
    binds, changes = _bindings(node)
    if not isinstance(node, Import):  # the block decides which of its imports runs
        binds |= {local for local, _ in names}
    body = node.body if isinstance(node, ast.ClassDef) else []
    if any(isinstance(n, ast.Name) and n.id == "classmethod" for n in _decorators_in(body)):
        traits |= {Reader.ITSELF}
    methods = [inner for inner in body if isinstance(inner, Function)]
    return Statement(
        module,
        place,
        _kind(node),
        form,
        tuple(sorted(traits)),
        tuple(sorted(binds)),
        tuple(sorted(changes)),
        names,
        stars,
        loads,
        **({} if isinstance(node, Import) else needs_of(node, module, home.is_future)),
        makers=_makers(node, module),
        made=made(node),
        attributes=attributes(node),
        reads_early=_reads_early(node),
        decorators=_all_decorators(node, module),
        own_decorators=len(node.decorator_list) if isinstance(node, Definition) else 0,
        bases=_bases(node, module),
        metaclass=_metaclass(node, module),
        methods=tuple(m.name for m in methods if not m.decorator_list),
        fields=tuple(m.target.id for m in body if is_field(m)),  # type: ignore[attr-defined]
        special=tuple(m.name for m in methods if m.name.startswith("__")),
    )


def _ref(module: str, node: ast.AST) -> Ref | None:
    """A reference to what a dotted name stands for; ``None`` for any other expression."""
    path = dotted(node)
    return Ref(module, ".".join(path), Use.CALL) if path else None


def _makers(node: ast.stmt, module: str) -> tuple[Ref, ...]:
    value = getattr(node, "value", None)
    inside = own_scope(value) if isinstance(value, ast.AST) else ()
    made_by = (_ref(module, inner.func) for inner in inside if isinstance(inner, ast.Call))
    return tuple(filter(None, made_by))


def _kind(node: ast.stmt) -> str:
    if isinstance(node, Function):
        return "function"
    if isinstance(node, ast.ClassDef):
        return "class"
    return "import" if isinstance(node, Import) else "other"


def _reads_early(node: ast.stmt) -> bool:
    if not isinstance(node, Function):
        return True
    arguments = node.args
    return bool(node.decorator_list or arguments.defaults or any(arguments.kw_defaults))


def _imports(
    node: ast.stmt, package: str
) -> tuple[tuple[tuple[str, Load], ...], tuple[str, ...], tuple[Load, ...]]:
    """The imported names, the modules of ``import *``, and the imports that run."""
    names: list[tuple[str, Load]] = []
    stars: list[str] = []
    loads: list[Load] = []
    for inner in own_scope(node):
        body = inner.body if isinstance(inner, ast.ClassDef) else []
        for found in (inner, *chain.from_iterable(map(own_scope, body))):
            if isinstance(found, Import):
                loads += [Load(*source) for source in loaded(found, package)]
        if not isinstance(inner, Import):
            continue
        for local, source in imported(inner, package):
            if local == "*":
                stars.append(source[0])
            else:
                names.append((local, Load(*source)))
    return tuple(names), tuple(stars), tuple(loads)


def _bindings(node: ast.stmt) -> tuple[set[str], set[str]]:
    """The global names that a statement binds, and those whose objects it changes."""
    binds: set[str] = set()
    changes: set[str] = set()
    augmented: set[ast.AST] = set()
    for inner in own_scope(node):
        match inner:
            case ast.AugAssign(target=ast.Name(id=name)):
                augmented.add(inner.target)
                changes.add(name)
            case ast.Attribute() | ast.Subscript() if not isinstance(inner.ctx, ast.Load):
                changes.add(root(inner))
            case ast.Name() if inner in augmented:
                pass
            case ast.ClassDef():
                binds.add(inner.name)
                changes |= _changed_by_class(inner)
            case _:
                binds.update(bound(inner))
    return binds, changes - {""}


def _changed_by_class(node: ast.ClassDef) -> set[str]:
    inside = list(chain.from_iterable(map(own_scope, node.body)))
    own = set(chain.from_iterable(map(bound, inside)))
    stored = (
        inner
        for inner in inside
        if isinstance(inner, ast.Attribute | ast.Subscript) and isinstance(inner.ctx, ast.Store)
    )
    return set(map(root, stored)) - own


def root(node: ast.AST) -> str:
    """The name at the left of ``a.b[0].c``; empty if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _decorators_in(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for inner in body:
        if isinstance(inner, Definition):
            yield from inner.decorator_list


def _all_decorators(node: ast.stmt, module: str) -> tuple[Ref | None, ...]:
    found: list[Ref | None] = []
    for inner in own_scope(node):
        if isinstance(inner, Definition):
            body = inner.body if isinstance(inner, ast.ClassDef) else []
            for decorator in (*inner.decorator_list, *_decorators_in(body)):
                found.append(_ref(module, called(decorator)))  # type: ignore[arg-type]
    return tuple(found)


def _bases(node: ast.stmt, module: str) -> tuple[Ref | None, ...]:
    if not isinstance(node, ast.ClassDef):
        return ()
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return tuple(_ref(module, base) for base in plain)


def _metaclass(node: ast.stmt, module: str) -> tuple[Ref, ...]:
    keywords = node.keywords if isinstance(node, ast.ClassDef) else ()
    named = (_ref(module, word.value) for word in keywords if word.arg == "metaclass")
    return tuple(filter(None, named))
