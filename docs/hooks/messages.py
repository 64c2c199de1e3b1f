"""The page of errors, written from the exceptions and messages that the code raises.

Nothing on it is written twice: an exception is explained by its docstring, and a message is the
text in the code, cut at the semicolon after which our messages say what to do.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
BUILT_IN = ("ValueError", "TypeError", "RuntimeError", "OSError", "FileNotFoundError")
"""Exceptions of Python's by which the libraries below ``steps/`` say what is wrong. In the core,
they are for other code."""
_OURS = ("TemperError", "StepFailed")
INTRODUCTION = """# Errors

An error of Temper is one sentence that says what is wrong and, after a semicolon, what to do. This
page lists these sentences by the packages that they come from: search it for a few words of the one
that you saw. What stands for a name, a number or a file of yours is in ‹angle brackets›.

- The whole traceback of a step is in its log (`temper logs STEP`). With `TEMPER_TRACEBACK=1`
  everything else shows its own, too.
- In Python, all of it can be caught: the core raises `TemperError`, the libraries below `steps/`
  raise Python's exceptions. Both are shown as one sentence. Any other exception counts as a bug,
  yours or ours, and is shown with its lines.
- `cannot import name … from 'pipeline' (…/pipeline.py)` is Python's: a file of yours has the name
  of Temper's package. Rename it.
"""


@dataclass(frozen=True)
class Message:
    """What a call of an exception says.

    Attributes:
        meaning: what is wrong.
        remedy: what to do, if the message says so.
    """

    kind: str
    meaning: str
    remedy: str


def errors_page() -> Iterator[str]:
    """The page's lines."""
    trees = dict(_trees())
    kinds = dict(_exceptions(trees.values()))
    yield INTRODUCTION
    yield "## Exceptions\n"
    yield "| exception | is a | |\n|---|---|---|"
    for name, (bases, meaning) in sorted(kinds.items()):
        yield f"| `{name}` | {', '.join(f'`{base}`' for base in bases)} | {_cell(meaning)} |"
    yield ""
    for package, files in _packages(trees):
        found = dict.fromkeys(
            m for file in files for m in _messages(trees[file], {*kinds, *BUILT_IN})
        )
        if found:
            yield f"## {package}\n"
            yield "| message | what to do | raised as |\n|---|---|---|"
            for message in sorted(found, key=lambda message: message.meaning.lower()):
                yield f"| {_cell(message.meaning)} | {_cell(message.remedy)} | `{message.kind}` |"
            yield ""


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for package in ("pipeline", "steps"):
        for file in sorted((REPOSITORY / package).rglob("*.py")):
            yield file.relative_to(REPOSITORY), ast.parse(file.read_text("utf-8"))


def _packages(trees: Iterable[Path]) -> Iterator[tuple[str, list[Path]]]:
    """Each package with the files below it; files beside the packages come first."""
    packages: dict[str, list[Path]] = {}
    for file in trees:
        package = "/".join(file.parts[:2] if len(file.parts) > 2 else file.parts[:1])
        packages.setdefault(package, []).append(file)
    yield from sorted(packages.items())


def _exceptions(trees: Iterable[ast.Module]) -> Iterator[tuple[str, tuple[tuple[str, ...], str]]]:
    """The exception classes of the code by name, with their bases and what they mean. One without a
    docstring, or that is caught before anybody sees it, as its leading underscore says, is none."""
    for node in (node for tree in trees for node in tree.body):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
            is_told = node.name == "TemperError" or {*BUILT_IN, *_OURS}.intersection(bases)
            if is_told and (docstring := ast.get_docstring(node)):
                yield node.name, (bases, " ".join(docstring.partition("\n\n")[0].split()))


def _messages(tree: ast.Module, kinds: set[str]) -> Iterator[Message]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            text = _text(node.args[0])
            if node.func.id in kinds and text.count(" ") > 1:
                meaning, _, remedy = text.partition("; ")
                yield Message(node.func.id, meaning, remedy)


def _text(node: ast.expr) -> str:
    """A text as a reader sees it, what is filled in by its name; "" of what is no text."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_text, values))
        case ast.FormattedValue(value=value):
            return f"‹{_name(value)}›"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case _:
            return ""


def _name(value: ast.expr) -> str:
    """What to call a value that is filled in."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").replace("_", " ")
        case ast.Call(args=[first, *_]):
            return _name(first)
        case ast.Subscript(value=inner):
            return _name(inner)
        case _:
            return "…"


def _cell(text: str) -> str:
    text = " ".join(text.replace("``", "`").split())
    return "".join(f"\\{letter}" if letter in "|*_<[" else letter for letter in text)
