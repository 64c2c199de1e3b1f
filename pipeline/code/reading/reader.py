"""Read a top-level statement: its form (:mod:`pipeline.code.form`) and its traits."""

import ast

from pipeline.code.bindings import everything
from pipeline.code.form import Form
from pipeline.code.reading.names import NAMESPACE_NAMES
from pipeline.code.reading.scopes import Home
from pipeline.code.reading.statements import Statements

_LOOKS_UP_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})


def read(node: ast.stmt, home: Home) -> tuple[Form, frozenset[str]]:
    """The form of a top-level statement, and its traits."""
    reader = Statements(home, _renames(node))
    reader.write(node)
    return reader.form(), frozenset(reader.traits)


def _renames(node: ast.stmt) -> bool:
    """Whether the names of local variables have no effect in a statement."""
    return not any(
        getattr(inner, "id", getattr(inner, "attr", "")) in _LOOKS_UP_LOCALS | NAMESPACE_NAMES
        for inner in everything(node)
    )
