"""Which part of a text is the program, and which form its tests have. Nothing runs here."""

import ast
import builtins
import re
import sys
import textwrap
import warnings
from collections.abc import Sequence, Set
from dataclasses import dataclass
from importlib.util import find_spec

MARK = "__assertion__"
"""The function that instrumented tests call where an assertion begins, holds or fails, and where
they catch any error between assertions."""
PROGRAM = "solution"
"""The module as which tests may import the program."""
_FENCE = re.compile(r"^[ \t]*```[ \t]*([^\n`]*)$")
_DEFINED = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_ASSERTS = re.compile(r"_?assert|raises$|fail$")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Tests:
    """Tests as they run.

    text: statements that call `MARK` before each assertion; of doctests, the examples.
    form: ``statements``, ``pytest`` or ``doctest``.
    called: the functions of the tests that nothing in the tests calls.
    uses: the names that they take from the program.
    lacks: why they say nothing about a program; empty if they do.
    """

    text: str = ""
    form: str = "statements"
    called: Sequence[str] = ()
    uses: Set[str] = frozenset()
    lacks: str = ""


def read_tests(text: str) -> Tests:
    """Tests of any form."""
    if re.search(r"^\s*>>> ", text, re.MULTILINE) and _parsed(text) is None:
        used = set(re.findall(r"[A-Za-z_]\w*", text))
        return Tests(textwrap.dedent(text), "doctest", uses=used)
    try:
        tree = ast.parse(text)
        with warnings.catch_warnings():  # `assert (x == 1, "why")` finds nothing wrong
            warnings.filterwarnings("error", "assertion is always true", SyntaxWarning)
            compile(text, "tests", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Tests(lacks=f"are no tests in Python: {error}")
    if missing := _missing(tree):
        return Tests(lacks=f"import {missing}, which is not installed; install {missing}")
    loaded = _loaded(tree)
    functions = [node for node in tree.body if isinstance(node, _Function)]
    tests = [f for f in functions if f.name.startswith("test") and f.name not in loaded]
    checks = [f for f in functions if f.name == "check" and f.name not in loaded and f.args.args]
    imports = {name.partition(".")[0] for name in _imported(tree)}
    cases = [c for c in tree.body if isinstance(c, ast.ClassDef) and c.name.startswith("Test")]
    plain = [c for c in cases if not c.bases and c.name not in loaded]
    special = [f for f in tests if f.decorator_list or f.args.args or f.args.kwonlyargs]
    is_pytest = bool(special or plain or ("pytest" in imports and tests))
    if is_pytest and find_spec("pytest") is None:
        return Tests(lacks="need pytest, which is not installed; install pytest")
    uses = frozenset((loaded | _from_program(tree)) - _defined(tree) - vars(builtins).keys())
    if not uses and not checks and PROGRAM not in imports:
        return Tests(lacks="use nothing of the program")
    own = {node.name for node in ast.walk(tree) if isinstance(node, _Function)}
    marked = ast.fix_missing_locations(_Marked(own, tree).visit(tree))
    form, called = ("pytest", ()) if is_pytest else ("statements", (*checks, *tests))
    return Tests(ast.unparse(marked), form, [each.name for each in called], uses)


def functions_in(prompt: str) -> list[str]:
    """The names of a prompt's functions, the last first, as HumanEval puts helpers before."""
    return list(dict.fromkeys(reversed(re.findall(r"\bdef[ \t]+(\w+)[ \t]*\(", prompt))))


def program_in(text: str, uses: Set[str]) -> str:
    """The last block that defines something that is used, behind earlier ones that it needs.

    Blocks that are marked as Python's come before those without a mark. Where no block defines what
    is used, the last one is the program; where there is no block, the text.
    """
    blocks = _blocks(text)
    chosen = [block for block, mark in blocks if mark] or [block for block, _ in blocks]
    program: list[str] = []
    wanted = set(uses)
    for block in reversed(chosen):
        tree = _parsed(block)
        defined = set(_DEFINED.findall(block)) if tree is None else _defined(tree)
        if defined & wanted:
            program.insert(0, block)
            wanted |= set() if tree is None else _loaded(tree) - vars(builtins).keys()
            wanted -= defined
    return "\n".join(program or chosen[-1:] or [text])


def _blocks(text: str) -> list[tuple[str, bool]]:
    """Blocks of a text, with whether they are marked as Python's.

    A fence with a mark always opens a block. The text's end closes one, and a fence that closes
    nothing ends a program at the start.
    """
    found: list[tuple[str, str]] = []
    mark: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if not fence:
            lines.append(line)
            continue
        block = textwrap.dedent("\n".join(lines))
        if mark is not None or (not found and not fence[1] and _parsed(block) and block.strip()):
            found.append((block, mark or ""))
            mark = fence[1].strip().lower() or None
        else:
            mark = fence[1].strip().lower()
        lines = []
    if mark is not None and "\n".join(lines).strip():
        found.append((textwrap.dedent("\n".join(lines)), mark))
    languages = ("", "py", "python", "python3")
    return [(block, bool(mark)) for block, mark in found if mark in languages]


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _loaded(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _defined(tree: ast.Module) -> set[str]:
    """Names that the statements bind, arguments of their functions included."""
    nodes = list(ast.walk(tree))
    found = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    found |= {n.name for n in nodes if isinstance(n, _Function | ast.ClassDef)}
    found |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    found |= {n.name for n in nodes if isinstance(n, ast.ExceptHandler) and n.name}
    imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    imports = [n for n in imports if not (isinstance(n, ast.ImportFrom) and n.module == PROGRAM)]
    return found | {(a.asname or a.name).partition(".")[0] for n in imports for a in n.names}


def _from_program(tree: ast.Module) -> set[str]:
    froms = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == PROGRAM)
    return {alias.name for node in froms for alias in node.names}


def _imported(tree: ast.Module) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module)
    return found


def _missing(tree: ast.Module) -> str:
    for name in _imported(tree):
        root = name.partition(".")[0]
        if root not in (PROGRAM, *sys.builtin_module_names) and find_spec(root) is None:
            return root
    return ""


class _Marked(ast.NodeTransformer):
    """Calls `MARK` around each statement that can find a program wrong, as the tests may catch
    that, and where they catch an error that kept such a statement from running. A `with` that
    asserts, and a `try` whose handlers catch only other errors or judge themselves, are one
    statement: what they catch is what they expect.

    Args:
        own: the functions of the tests, which may assert.
        tree: all of the tests, which may catch what a function of theirs raises.
    """

    def __init__(self, own: Set[str], tree: ast.AST) -> None:
        handlers = [each for each in ast.walk(tree) if isinstance(each, ast.ExceptHandler)]
        self.own, self.catches = own, not all(map(_judges, handlers))

    def visit_Assert(self, node: ast.stmt) -> ast.AST | list[ast.AST]:
        failed = ast.ExceptHandler(None, None, [_mark("fails"), ast.Raise()])
        return [_mark("begins"), ast.Try([node], [failed], [_mark("holds")], [])]

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        return self.visit_Assert(node) if _asserts(node.value) else node

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.AST]:
        is_one = any(_asserts(item.context_expr) for item in node.items)
        if is_one:
            return self.visit_Assert(node)
        may_judge, suppressed = (
            self.may_judge(node.body),
            [each.context_expr for each in node.items],
        )
        self.generic_visit(node)
        if may_judge and any(map(_suppresses, suppressed)):
            caught = ast.ExceptHandler(None, None, [_mark("caught"), ast.Raise()])
            node.body = [ast.Try(node.body, [caught], [], [])]
        return node

    def may_judge(self, body: Sequence[ast.stmt]) -> bool:
        inside = [each for statement in body for each in ast.walk(statement)]
        return any(_asserts(each) or _name(each) in self.own for each in inside)

    def visit_If(self, node: ast.If | ast.Match) -> ast.AST | list[ast.AST]:
        raises = any(map(_raises, ast.walk(node)))
        self.generic_visit(node)
        if raises and self.catches:
            return self.visit_Assert(node)
        return [_mark("begins"), node] if raises else node

    visit_Match = visit_If

    def visit_Try(self, node: ast.Try) -> ast.AST | list[ast.AST]:
        asserts = any(map(_asserts, ast.walk(node)))
        swallows = any(map(_swallows, node.handlers))
        if asserts and node.handlers and not swallows:
            for handler in node.handlers:
                if not _judges(handler):
                    handler.body.insert(0, _mark("handled"))
            return self.visit_Assert(node)
        raises = any(map(_raises, ast.walk(node)))
        may_judge = self.may_judge(node.body)
        self.generic_visit(node)
        for handler in node.handlers if may_judge else ():
            if _swallows(handler):
                handler.body.insert(0, _mark("caught"))
        return [_mark("begins"), node] if raises else node


def _mark(what: str) -> ast.stmt:
    return ast.Expr(ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(what)], []))


def _name(node: ast.AST | None) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _asserts(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Assert) or bool(_ASSERTS.match(_name(called)))


def _suppresses(node: ast.expr) -> bool:
    called = isinstance(node, ast.Call) and _name(node.func) == "suppress" and node.args
    return any(map(_is_broad, called or ()))


def _is_broad(kinds: ast.expr | None) -> bool:
    """Whether a handler of these errors catches what assertions raise."""
    names = {_name(each) for each in ast.walk(kinds)} if kinds else {"BaseException"}
    return bool(names & {"AssertionError", "Exception", "BaseException"})


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether it catches what assertions raise, and neither asserts nor raises itself."""
    return _is_broad(handler.type) and not _judges(handler)


def _judges(handler: ast.ExceptHandler) -> bool:
    inside = [each for statement in handler.body for each in ast.walk(statement)]
    return any(isinstance(each, ast.Raise) or _asserts(each) for each in inside)


def _raises(node: ast.AST) -> bool:
    """Whether a program is wrong where this runs: an error, `fail()`, `assert False`, `exit(1)`."""
    if isinstance(node, ast.Call) and _name(node.func) in ("exit", "quit", "_exit"):
        return any(getattr(given, "value", None) for given in node.args)
    is_false = isinstance(node, ast.Assert) and getattr(node.test, "value", True) in (False, 0)
    return isinstance(node, ast.Raise) or is_false or _name(getattr(node, "func", None)) == "fail"
