"""Whether a chat template only writes the contents of messages, and never looks at them.

Most templates write a content as it is, or without the white space at its ends, and decide by roles
and positions alone. Then the text of a conversation is known once that of any conversation of equal
shape is: the contents change places, and nothing else changes. This module proves that by reading
the template's program: it follows every content through the program (an abstract interpretation).

The proof holds for conversations without tools and without arguments of their own, of messages with
a role and a content alone, where each content is a text with more than white space. A template may
ask for a content's type or whether it is empty: for all those conversations the answer is the same.
It may also look for a text of its own (`'</think>' in message.content`): the proof holds where no
content has that text in it. Whatever this module does not know is no proof.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from jinja2 import nodes

from steps.data.templates.programs import is_generation


class _Kind(Enum):
    """What a value may be.

    `shape`: it depends on the shape of the conversation alone; `yes` and `no` are known ones.
    `text`: a content, with or without the white space at its ends; `maybe`: that or `shape`.
    `mixed`: a text with contents within. `item`: a message; `items`: several; `loop`: jinja's.
    """

    shape = "shape"
    yes = "yes"
    no = "no"
    text = "text"
    maybe = "maybe"
    mixed = "mixed"
    item = "item"
    items = "items"
    loop = "loop"


_SHAPE, _YES, _NO, _TEXT, _MAYBE, _MIXED, _ITEM, _ITEMS, _LOOP = _Kind
_SHAPES = {_SHAPE, _YES, _NO}
_WRITTEN = {*_SHAPES, _TEXT, _MAYBE, _MIXED}
_ONE_TEXT = {_TEXT, _MAYBE}

_HOLDS_FOR_TEXT = {"string", "defined", "iterable", "sequence"}
_FAILS_FOR_TEXT = {"none", "undefined", "mapping", "number", "integer", "float", "boolean", "false",
                   "true"}  # fmt: skip
_PURE = {"range", "namespace", "raise_exception", "dict"}
"""Functions whose result depends on their arguments alone."""

Scope = dict[str, _Kind]
"""The kinds of names that were set; a name that was not is of `shape`."""


class _Unproven(Exception):
    """The program does something with a content that this module does not follow."""


def looked_for_in_contents(program: nodes.Template) -> frozenset[str] | None:
    """The texts that no content may have in it, so that the template only writes contents; None if
    there is no proof that it does."""
    reader = _Reader()
    try:
        reader.read(program)
    except (_Unproven, RecursionError):
        return None
    return frozenset(reader.looked_for)


class _Reader:
    def __init__(self) -> None:
        self.looked_for: set[str] = set()
        self.functions = set(_PURE)
        self.holds_contents = {"messages"}

    def read(self, program: nodes.Template) -> None:
        macros = list(program.find_all(nodes.Macro))
        self.functions |= {macro.name for macro in macros}
        self.block(program.body, {"messages": _ITEMS})
        for macro in macros:
            self.block(macro.body, {})
            if self.holds_contents & {name.name for name in macro.find_all(nodes.Name)}:
                raise _Unproven

    # --- statements ------------------------------------------------------------------------------

    def block(self, body: Iterable[nodes.Node], scope: Scope) -> None:
        for node in body:
            self.statement(node, scope)

    def statement(self, node: nodes.Node, scope: Scope) -> None:
        match node:
            case nodes.Output():
                self.all_of(node.nodes, scope, _WRITTEN)
            case nodes.If():
                self.choice(node, scope)
            case nodes.For():
                self.loop(node, scope)
            case nodes.Assign():
                self.assign(node, scope)
            case nodes.CallBlock() if is_generation(node):
                within = dict(scope)
                self.block(node.body, within)
                _merge_into(scope, [scope, within])
            case nodes.Macro() | nodes.Break() | nodes.Continue():
                pass
            case _:
                raise _Unproven

    def choice(self, node: nodes.If, scope: Scope) -> None:
        ends: list[Scope] = []
        for test, body in [(branch.test, branch.body) for branch in (node, *node.elif_)]:
            truth = self.truth(test, scope)
            if truth is not _NO:
                ends.append(dict(scope))
                self.block(body, ends[-1])
            if truth is _YES:
                break
        else:
            ends.append(dict(scope))
            self.block(node.else_, ends[-1])
        _merge_into(scope, ends)

    def loop(self, node: nodes.For, scope: Scope) -> None:
        over = self.value(node.iter, scope)
        if node.recursive or over not in {*_SHAPES, _ITEMS}:
            raise _Unproven
        item, loop = (_ITEM, _LOOP) if over is _ITEMS else (_SHAPE, _SHAPE)
        names = _names(node.target)
        if over is _ITEMS and not isinstance(node.target, nodes.Name):
            raise _Unproven
        start, before = dict(scope), None
        while start != before:  # what one turn sets, the next may see
            before = dict(start)
            within = {**start, **dict.fromkeys(names, item), "loop": loop}
            if item is _ITEM:
                self.holds_contents |= {*names, "loop"}
            if node.test is not None:
                self.truth(node.test, within)
            self.block(node.body, within)
            for name in (*names, "loop"):
                within.pop(name, None)
                if name in scope:
                    within[name] = scope[name]
            _merge_into(start, [start, within])
        self.block(node.else_, start)
        _merge_into(scope, [scope, start])

    def assign(self, node: nodes.Assign, scope: Scope) -> None:
        kind = self.value(node.node, scope)
        if isinstance(node.target, nodes.Name):
            scope[node.target.name] = kind
            if kind not in _SHAPES:
                self.holds_contents.add(node.target.name)
        elif kind not in _SHAPES:
            raise _Unproven
        else:
            scope.update(dict.fromkeys(_names(node.target), _SHAPE))

    # --- values ----------------------------------------------------------------------------------

    def all_of(self, parts: Iterable[nodes.Node], scope: Scope, kinds: set[_Kind]) -> set[_Kind]:
        """The kinds of several values, which have to be among `kinds`."""
        found = {self.value(part, scope) for part in parts}
        if not found <= kinds:
            raise _Unproven
        return found

    def truth(self, node: nodes.Node, scope: Scope) -> _Kind:
        """Whether a value counts as true: `yes`, `no`, or by the `shape`."""
        match node:
            case nodes.Not():
                return {_YES: _NO, _NO: _YES}.get(self.truth(node.node, scope), _SHAPE)
            case nodes.And() | nodes.Or():
                decides = _NO if isinstance(node, nodes.And) else _YES
                left = self.truth(node.left, scope)
                if left is decides:
                    return left
                right = self.truth(node.right, scope)
                return right if left is not _SHAPE else _SHAPE
        kind = self.value(node, scope)
        return _YES if kind is _TEXT else kind if kind in _SHAPES else _SHAPE

    def value(self, node: nodes.Node, scope: Scope) -> _Kind:
        match node:
            case nodes.Const():
                return {True: _YES, False: _NO}[node.value] if node.value in _BOOLEANS else _SHAPE
            case nodes.TemplateData():
                return _SHAPE
            case nodes.Name() if node.name not in _OF_JINJA:
                return scope.get(node.name, _SHAPE)
            case nodes.Getattr():
                return self.within(self.value(node.node, scope), node.attr)
            case nodes.Getitem():
                return self.item(node, scope)
            case nodes.Not():
                return self.truth(node, scope)
            case nodes.And() | nodes.Or():
                return self.either(node, scope)
            case nodes.CondExpr():
                return self.conditional(node, scope)
            case nodes.Compare():
                return self.compared(node, scope)
            case nodes.Test():
                return self.tested(node, scope)
            case nodes.Filter():
                return self.filtered(node, scope)
            case nodes.Call():
                return self.called(node, scope)
            case nodes.Add():
                return self.joined([node.left, node.right], scope)
            case nodes.Concat():
                return self.joined(node.nodes, scope)
            case _ if isinstance(node, _OF_SHAPES):
                self.all_of(node.iter_child_nodes(), scope, _SHAPES)
                return _SHAPE
            case _:
                raise _Unproven

    def joined(self, parts: Sequence[nodes.Node], scope: Scope) -> _Kind:
        found = self.all_of(parts, scope, _WRITTEN)
        return _SHAPE if found <= _SHAPES else _MIXED

    def item(self, node: nodes.Getitem, scope: Scope) -> _Kind:
        base = self.value(node.node, scope)
        if base is _ITEM and isinstance(node.arg, nodes.Const):
            return self.within(base, node.arg.value)
        if isinstance(node.arg, nodes.Slice):
            self.all_of(node.arg.iter_child_nodes(), scope, _SHAPES)
            if base in {*_SHAPES, _ITEMS}:
                return base
        if base not in {*_SHAPES, _ITEMS}:
            raise _Unproven
        self.all_of([node.arg], scope, _SHAPES)
        return _ITEM if base is _ITEMS else _SHAPE

    def within(self, base: _Kind, name: object) -> _Kind:
        """The kind of an attribute or of a key."""
        if base in _SHAPES:
            return _SHAPE
        if base is _LOOP:
            return _ITEM if name in ("previtem", "nextitem") else _SHAPE
        if base is _ITEM and isinstance(name, str) and not hasattr(dict, name):
            return _TEXT if name == "content" else _SHAPE
        raise _Unproven

    def either(self, node: nodes.And | nodes.Or, scope: Scope) -> _Kind:
        decides = _NO if isinstance(node, nodes.And) else _YES
        left, truth = self.value(node.left, scope), self.truth(node.left, scope)
        if truth is decides:
            return left
        right = self.value(node.right, scope)
        return right if truth is not _SHAPE else _merged(left, right)

    def conditional(self, node: nodes.CondExpr, scope: Scope) -> _Kind:
        truth = self.truth(node.test, scope)
        one = None if truth is _NO else self.value(node.expr1, scope)
        if truth is _YES and one is not None:
            return one
        other = _SHAPE if node.expr2 is None else self.value(node.expr2, scope)
        return other if one is None else _merged(one, other)

    def compared(self, node: nodes.Compare, scope: Scope) -> _Kind:
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        kinds = [self.value(operand, scope) for operand in operands]
        if _SHAPES.issuperset(kinds):
            return _SHAPE
        if len(node.ops) != 1:
            raise _Unproven
        operation = node.ops[0].op
        if operation in ("in", "notin"):
            if kinds[0] in _SHAPES and kinds[1] is _ITEM:
                return _SHAPE  # a key of a message
            return self.absent(operands[0], kinds[1], is_found=operation == "in")
        if operation not in ("eq", "ne"):
            raise _Unproven
        constant, text = (operands[0], kinds[1]) if kinds[0] in _SHAPES else (operands[1], kinds[0])
        if isinstance(constant, nodes.Const) and constant.value in ("", None):
            return _answer(text, operation == "ne")
        return self.absent(constant, text, is_found=operation == "eq")

    def absent(self, constant: nodes.Node, text: _Kind, *, is_found: bool = True) -> _Kind:
        """The answer for texts in which `constant` does not occur."""
        value = getattr(constant, "value", None)
        if not (isinstance(constant, nodes.Const) and isinstance(value, str) and value):
            raise _Unproven
        self.looked_for.add(value)
        return _answer(text, not is_found)

    def tested(self, node: nodes.Test, scope: Scope) -> _Kind:
        kind = self.value(node.node, scope)
        self.all_of(_arguments(node), scope, _SHAPES)
        if kind in _SHAPES:
            return _SHAPE
        if node.name not in _HOLDS_FOR_TEXT | _FAILS_FOR_TEXT:
            raise _Unproven
        return _answer(kind, node.name in _HOLDS_FOR_TEXT) if kind in _ONE_TEXT else _SHAPE

    def filtered(self, node: nodes.Filter, scope: Scope) -> _Kind:
        arguments = _arguments(node)
        named = {node.name, *(getattr(argument, "value", None) for argument in arguments)}
        maps = node.name == "map" and not all(isinstance(a, nodes.Const) for a in node.args)
        if node.node is None or maps or not _NOT_FOLLOWED.isdisjoint(named):
            raise _Unproven
        kind = self.value(node.node, scope)
        self.all_of(arguments, scope, _SHAPES)
        if kind in _SHAPES:
            return _SHAPE
        if kind in _ONE_TEXT and node.name == "trim" and not arguments:
            return kind
        if kind is _ITEMS and node.name in _OF_ITEMS and not arguments:
            return _OF_ITEMS[node.name]
        raise _Unproven

    def called(self, node: nodes.Call, scope: Scope) -> _Kind:
        arguments = _arguments(node)
        if isinstance(node.node, nodes.Name):
            name = node.node.name
            if name == "raise_exception":
                return _SHAPE
            if name in scope or name not in self.functions:
                raise _Unproven
        elif isinstance(node.node, nodes.Getattr):
            base, name = self.value(node.node.node, scope), node.node.attr
            if base in _ONE_TEXT:
                return self.asked_of_text(base, name, arguments)
            if base is _ITEM and name == "get" and arguments:
                self.all_of(arguments, scope, _SHAPES)
                return self.within(base, getattr(arguments[0], "value", None))
            if base not in {*_SHAPES, _LOOP}:
                raise _Unproven
        else:
            raise _Unproven
        self.all_of(arguments, scope, _SHAPES)
        return _SHAPE

    def asked_of_text(self, text: _Kind, method: str, arguments: list[nodes.Node]) -> _Kind:
        if method == "strip" and not arguments:
            return text
        if method in ("startswith", "endswith") and len(arguments) == 1:
            return self.absent(arguments[0], text)
        raise _Unproven


_OF_JINJA = {"self", "super", "caller"}
_NOT_FOLLOWED = {"random", "safe", "e", "escape", "forceescape"}
"""Filters, by which `map` may also call them, with a result of chance, or a text to which a content
is escaped when it is added."""

_BOOLEANS: tuple[bool, ...] = (True, False)
_OF_ITEMS: Mapping[str, _Kind] = {
    "length": _SHAPE, "count": _SHAPE, "first": _ITEM, "last": _ITEM, "list": _ITEMS,
}  # fmt: skip
_OF_SHAPES = (
    nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Sub, nodes.Mul, nodes.Div,
    nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Neg, nodes.Pos,
)  # fmt: skip


def _arguments(node: nodes.Test | nodes.Filter | nodes.Call) -> list[nodes.Node]:
    named = [pair.value for pair in node.kwargs]
    others = [more for more in (node.dyn_args, node.dyn_kwargs) if more is not None]
    return [*node.args, *named, *others]


def _names(target: nodes.Node) -> list[str]:
    return [name.name for name in (target, *target.find_all(nodes.Name))
            if isinstance(name, nodes.Name)]  # fmt: skip


def _answer(text: _Kind, holds: bool) -> _Kind:
    """A known answer for a content; one by the shape for what may be something else."""
    if text not in _ONE_TEXT:
        raise _Unproven
    return (_YES if holds else _NO) if text is _TEXT else _SHAPE


def _merged(one: _Kind, other: _Kind) -> _Kind:
    if one is other:
        return one
    both = {one, other}
    if both <= _SHAPES:
        return _SHAPE
    if not both <= _WRITTEN:
        raise _Unproven
    return _MIXED if _MIXED in both else _MAYBE


def _merge_into(scope: Scope, ends: Sequence[Scope]) -> None:
    """Set `scope` to what holds after any of several ways through the program."""
    found: Scope = {}
    for name in {name for end in ends for name in end}:
        kinds = {end.get(name) for end in ends}
        known = [kind for kind in kinds if kind is not None]
        kind = known[0]
        for other in known[1:]:
            kind = _merged(kind, other)
        if None in kinds and kind in {_TEXT, _YES, _NO}:  # otherwise it may be undefined
            kind = _merged(kind, _SHAPE)
        found[name] = kind
    scope.clear()
    scope.update(found)
