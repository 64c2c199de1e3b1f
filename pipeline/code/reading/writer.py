"""Write the form of a node: texts and pieces, one part within another."""

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

from pipeline.code.bindings import Import, imported, loaded
from pipeline.code.form import Form, Load, Message, Piece, Reader, Ref, Tried, Use, When
from pipeline.code.reading.scopes import Home, Scope
from pipeline.code.reading.syntax import is_idle


class Writer:
    """Writes what every node has in common."""

    def __init__(self, home: Home, renames: bool):
        self.module, self.package, self.docstring = home.module, home.package, home.docstring
        self.is_future = home.is_future
        self.renames = renames
        self.traits: set[str] = set()
        self.scopes: list[Scope] = []
        self.entered = 0
        self.use = Use.VALUE
        self.classes: list[str] = []
        self.listed: set[int] = set()
        self.compared: set[int] = set()
        self.called: set[int] = set()
        self.loggers: set[tuple[str, ...]] = set()  # names of variables that hold one
        self.tries = False  # whether the code goes on after an import that fails
        self.locals: dict[tuple[int, str], int] = {}
        self._parts: list[list[Piece]] = [[]]

    def form(self) -> Form:
        names = ",".join(name for _, name in self.locals)
        if names:
            self.piece(When(Reader.NAMES, (names,)))
        return _joined_texts(self._parts[0])

    def emit(self, text: str) -> None:
        self._parts[-1].append(text)

    def piece(self, piece: Piece) -> None:
        self._parts[-1].append(piece)

    @contextmanager
    def part(self, make: Callable[[Form], Piece]) -> Iterator[None]:
        """Collect what is written inside the block into one piece."""
        self._parts.append([])
        yield
        self.piece(make(_joined_texts(self._parts.pop())))

    def when(self, reader: str) -> AbstractContextManager[None]:
        return self.part(lambda form: When(reader, form))

    @contextmanager
    def using(self, use: str) -> Iterator[None]:
        before, self.use = self.use, use
        yield
        self.use = before

    def write(self, value: object) -> None:
        """Write a node as its name and its non-empty fields, so that a field that a later Python
        version adds does not change the form."""
        if isinstance(value, list):
            self.emit("[")
            for item in value:
                if self.is_silent(item):
                    self.write_silent(item)
                    continue
                self.write(item)
                if not (self._parts[-1] and isinstance(self._parts[-1][-1], Message)):
                    self.emit(",")
            self.emit("]")
        elif isinstance(value, ast.AST):
            special = getattr(self, f"write_{type(value).__name__}", None)
            (special or self.generic)(value)
        else:
            self.emit("~" if value is None else ascii(value))

    def is_silent(self, node: object) -> bool:
        """Whether a statement of a function has no form of its own: an import of names that nothing
        else binds, or the annotation of a variable."""
        scope = self.scopes[-1] if self.scopes else None
        if scope is None or scope.is_class:
            return False
        if isinstance(node, Import):
            locals_ = [local for local, _ in imported(node, self.package)]
            return all(local in scope.imported for local in locals_)
        if not isinstance(node, ast.AnnAssign):
            return False
        return node.value is None and isinstance(node.target, ast.Name)

    def write_silent(self, node: ast.AST) -> None:
        if isinstance(node, Import):
            self.write_loads(node)
        elif isinstance(node, ast.AnnAssign):
            self.name_only(node.annotation)

    def write_loads(self, node: Import) -> None:
        for source in loaded(node, self.package):
            self.piece(Load(*source))
            if self.tries:
                self.piece(Tried(*source))

    def generic(self, node: ast.AST, leave_out: Iterable[str] = ()) -> None:
        is_display = isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict)
        is_shown = self.use == Use.SHOWN and is_display
        with self.using(self.use if self.use == Use.HINT or is_shown else Use.VALUE):
            self.emit(f"({type(node).__name__}")
            for name in _fields(type(node)):
                if name not in leave_out:
                    self.field(name, getattr(node, name, None))
            self.emit(")")

    def field(self, name: str, content: object) -> None:
        if isinstance(content, list):
            content = [item for item in content if not is_idle(item)]
        if content is not None and content != []:
            self.emit(f" {name}=")
            self.write(content)

    @contextmanager
    def collected(self) -> Iterator[list[Ref]]:
        """Collect the references that are written inside the block, and discard the rest."""
        self._parts.append([])
        named: list[Ref] = []
        yield named
        named += [piece for piece in self._parts.pop() if isinstance(piece, Ref)]

    def name_only(self, node: ast.expr) -> None:
        """Write only the references of an annotation."""
        with self.using(Use.HINT), self.collected() as named:
            self.write(node)
        for reference in named:
            self.piece(reference._replace(use=Use.NAMED))


def _joined_texts(pieces: list[Piece]) -> Form:
    """The pieces, with adjacent texts joined."""
    joined: list[Piece] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        if texts:
            joined.append("".join(texts))
            texts.clear()
        joined.append(piece)
    if texts:
        joined.append("".join(texts))
    return tuple(joined)


@cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(sorted(set(kind._fields) - {"ctx", "type_comment"}))
