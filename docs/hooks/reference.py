"""The reference pages of the site, written from signatures and docstrings when the site is built.

Every step with its inputs, every kind with its columns, the settings of every config that a step
takes, and every message of an error (``messages``). MkDocs is not needed to write them.
"""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
from messages import errors_page

import steps
from pipeline import Artifact
from pipeline.configs.setting_docs import arguments_in, meanings_of, summary_of
from pipeline.dag.step import StepFunction
from steps import kinds
from steps.data.rows.tables import CONVERSATIONS, MESSAGES, PAIRS, PROMPTS, TEXTS, UNPAIRED
from steps.data.tokens.token_tables import COMPLETION_TOKENS, CONVERSATION_TOKENS, PAIR_TOKENS
from steps.online.rollouts import ROLLOUTS
from steps.shared.execution_detail import is_detail

COLUMNS: Mapping[type[Artifact], pa.Schema] = {
    kinds.Preferences: PAIRS,
    kinds.Conversations: CONVERSATIONS,
    kinds.Prompts: PROMPTS,
    kinds.Unpaired: UNPAIRED,
    kinds.Texts: TEXTS,
    kinds.PairTokens: PAIR_TOKENS,
    kinds.ConversationTokens: CONVERSATION_TOKENS,
    kinds.UnpairedTokens: COMPLETION_TOKENS,
    kinds.Rollouts: ROLLOUTS,
}
"""The columns of the kinds that are tables; a kind that is derived from one has its columns."""

FROM_ABOVE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples.md": "examples/README.md",
    "inside/benchmarks.md": "benchmarks/README.md",
    "inside/architecture.md": "pipeline/ARCHITECTURE.md",
    "inside/keys.md": "pipeline/dag/KEYS.md",
    "inside/discovered.md": "pipeline/observed/DISCOVERED.md",
    "inside/code.md": "pipeline/trace/RULE.md",
    "inside/layout.md": "pipeline/store/LAYOUT.md",
    "inside/protocol.md": "pipeline/worker/PROTOCOL.md",
    "inside/jax_backend.md": "steps/jax_backend/BACKEND.md",
    "inside/rows.md": "steps/data/formats/ROWS.md",
    "inside/masks.md": "steps/data/tokens/MASKS.md",
    "inside/engines.md": "steps/generation/remote/ENGINES.md",
    "inside/architectures.md": "benchmarks/architectures.md",
    "inside/tokenization.md": "benchmarks/tokenization.md",
    "inside/online_training.md": "benchmarks/online_training.md",
    "inside/influence.md": "benchmarks/influence.md",
}
"""Pages that do not lie in ``docs/``: specifications and measurements, beside their code."""

_SECTION = re.compile(r"^(Args|Raises):\n((?:    .*\n|\n)*)", re.MULTILINE)


def pages() -> dict[str, str]:
    """The text of each page, by its address below ``docs/``."""
    shipped = shipped_steps()
    return {
        "reference/steps.md": "\n".join(_steps_page(shipped)),
        "reference/kinds.md": "\n".join(_kinds_page(shipped)),
        "reference/settings.md": "\n".join(_settings_page(shipped)),
        "reference/data_sets.md": "\n".join(_data_sets_page()),
        "reference/errors.md": "\n".join(errors_page()),
    }


def shipped_steps() -> list[StepFunction]:
    """The step functions that ship with Temper, in the order of their names."""
    files = [file.name for file in pkgutil.iter_modules(steps.__path__) if not file.ispkg]
    found = [getattr(importlib.import_module(f"steps.{name}"), name, None) for name in files]
    return [one for one in found if isinstance(one, StepFunction)]


def _steps_page(shipped: Iterable[StepFunction]) -> Iterator[str]:
    yield "# Steps\n"
    yield (
        "Each step is a function in a file of its own in `steps/`. Calling it runs nothing and "
        "gives a `Step`, which other steps take as an input. An input is an artifact of a "
        "[kind](kinds.md); everything else is a value. [Settings](settings.md) explains the "
        "configs.\n"
    )
    for one in shipped:
        yield f"## {one.name}\n"
        docstring = inspect.cleandoc(one.__doc__ or "") + "\n"
        yield _markdown(_SECTION.sub("", docstring)) + "\n"
        yield f"Makes: {_type(one.makes)}\n"
        yield from _parameters(one, dict(arguments_in(docstring)))
        for name, body in _SECTION.findall(docstring):
            if name == "Raises":
                yield "Raises " + "; ".join(map(_markdown, _paragraphs(body))) + "\n"


def _parameters(one: StepFunction, meanings: Mapping[str, str]) -> Iterator[str]:
    yield "| parameter | takes | default | |\n|---|---|---|---|"
    for parameter in one.signature.parameters.values():
        default = "" if parameter.default is parameter.empty else _code(parameter.default)
        meaning = _cell(meanings.get(parameter.name, ""))
        yield f"| `{parameter.name}` | {_type(parameter.annotation)} | {default} | {meaning} |"
    yield ""


def _kinds_page(shipped: Iterable[StepFunction]) -> Iterator[str]:
    yield "# Kinds\n"
    yield (
        "A kind says what an artifact holds. A step declares the kinds that it takes and makes, so "
        "that a wrong connection is refused when the DAG is built. A message in a table is a "
        "`role`, a `content` and, as JSON, whatever `extra` keys it had.\n"
    )
    for kind in _kinds():
        yield f"## {kind.__name__}\n"
        yield _markdown(inspect.cleandoc(kind.__doc__ or "")) + "\n"
        if kind.__bases__[0] is not Artifact:
            yield f"Is also: {_type(kind.__bases__[0])}\n"
        makers = [one.name for one in shipped if one.makes is kind]
        takers = [one.name for one in shipped if _takes(one, kind)]
        for word, names in (("Made by", makers), ("Taken by", takers)):
            if names:
                yield f"{word}: {', '.join(f'[{name}](steps.md#{name})' for name in names)}\n"
        if isinstance(kind.parts, Mapping):
            yield f"Parts: {', '.join(f'`{n}` ({_type(k)})' for n, k in kind.parts.items())}\n"
        elif kind.parts is not None:
            yield f"Parts: one for each split ({_type(kind.parts)})\n"
        columns = next((COLUMNS[base] for base in kind.__mro__ if base in COLUMNS), None)
        if columns is not None:
            yield "| column | type | null |\n|---|---|---|"
            for column in columns:
                nullable = "yes" if column.nullable else ""
                yield f"| `{column.name}` | `{_column_type(column.type)}` | {nullable} |"
            yield ""


SCHEMAS = "tests/data/test_schemas.py"
_TABLES = {
    "AS_THEY_ARE": "Preference pairs that load as they are",
    "CONVERSATIONS": "Conversations that load as they are",
    "PROMPTS": "Prompts with answers that load as they are",
    "REFUSED": "Refused until you name the fields",
}
"""The tables of the tests in ``SCHEMAS``, and what they show."""


def _data_sets_page() -> Iterator[str]:
    yield "# Data sets\n"
    yield (
        "Temper recognises data sets by the names of their columns. A test loads rows of each of "
        "these, written in the columns of their cards.\n"
    )
    tree = ast.parse((Path(__file__).parents[2] / SCHEMAS).read_text("utf-8"))
    for name, title in _TABLES.items():
        yield f"## {title}\n"
        for table in tree.body:
            is_table = isinstance(table, ast.AnnAssign | ast.AugAssign)
            if is_table and isinstance(table.value, ast.Dict) and ast.unparse(table.target) == name:
                for key, value in zip(table.value.keys, table.value.values, strict=True):
                    yield f"- {_cell(str(ast.literal_eval(key)))}{_settings_of(value)}"  # type: ignore[arg-type]
        yield ""


def _settings_of(case: ast.expr) -> str:
    """The settings that a case of a refused data set ends with."""
    if not isinstance(case, ast.Tuple):
        return ""
    *_, fields, form = case.elts
    return f": `data.format={ast.literal_eval(form)}`, `data.fields={ast.unparse(fields)}`"


def _column_type(kind: pa.DataType) -> str:
    if kind == MESSAGES:
        return "list<message>"
    return re.sub(r"element: (\w+)(?: not null)?", r"\1", str(kind)).replace("item: ", "")


def _kinds() -> list[type[Artifact]]:
    found = [one for one in vars(kinds).values() if isinstance(one, type)]
    return [one for one in found if issubclass(one, Artifact) and one is not Artifact]


def _takes(one: StepFunction, kind: type) -> bool:
    annotations = [parameter.annotation for parameter in one.signature.parameters.values()]
    return any(kind in _members(annotation) for annotation in annotations)


def _settings_page(shipped: Iterable[StepFunction]) -> Iterator[str]:
    yield "# Settings\n"
    yield (
        "The configs that steps take, with their defaults in Python. A recipe may begin with other "
        "values: its `--help` shows these. A setting with ○ cannot change a result, and is part of "
        "no key.\n"
    )
    for config in sorted(_configs(shipped), key=lambda config: config.__name__):
        yield f"## {config.__name__}\n"
        yield _cell(summary_of(config)) + "\n"
        meanings = meanings_of(config)
        hints = get_type_hints(config)
        yield "| setting | takes | default | | |\n|---|---|---|---|---|"
        for field in dataclasses.fields(config):
            has_default = (default := _default(field)) is not dataclasses.MISSING
            yield (
                f"| `{field.name}` | {_type(hints[field.name])} "
                f"| {_code(default) if has_default else ''} "
                f"| {'○' if is_detail(field) else ''} | {_cell(meanings.get(field.name, ''))} |"
            )
        yield ""


def _configs(shipped: Iterable[StepFunction]) -> set[type]:
    """Every config class that a parameter of a step holds, and those within them."""
    waiting = [
        parameter.annotation for one in shipped for parameter in one.signature.parameters.values()
    ]
    found: set[type] = set()
    while waiting:
        for kind in _members(waiting.pop()):
            if _is_config(kind) and kind not in found:
                found.add(kind)
                waiting += get_type_hints(kind).values()
    return found


def _is_config(kind: Any) -> bool:
    """Whether a class has settings; losses, checkers and the like are families of such classes."""
    if not isinstance(kind, type) or issubclass(kind, Artifact):
        return False
    is_ours = kind.__module__.startswith("steps.") and dataclasses.is_dataclass(kind)
    return is_ours and len(dataclasses.fields(kind)) > 0


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; of any other type, itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _type(annotation: Any) -> str:
    return " or ".join(map(_one_type, _members(annotation)))


def _one_type(kind: Any) -> str:
    if kind is types.NoneType:
        return "none"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if isinstance(kind, type) and issubclass(kind, Artifact) and kind is not Artifact:
        return f"[{kind.__name__}](kinds.md#{kind.__name__.lower()})"
    if _is_config(kind):
        return f"[{kind.__name__}](settings.md#{kind.__name__.lower()})"
    return f"`{re.sub(r'[a-z_]+[.]', '', inspect.formatannotation(kind))}`"


def _code(value: Any) -> str:
    return f"`{_text(value)}`"


def _text(value: Any) -> str:
    """A value as an author writes it: of a dataclass, what differs from its defaults."""
    if isinstance(value, Enum):
        return str(value.value)
    if not dataclasses.is_dataclass(value):
        return repr(value)
    changed = {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.init and getattr(value, field.name) != _default(field)
    }
    inside = ", ".join(f"{name}={_text(held)}" for name, held in changed.items())
    return f"{type(value).__name__}({inside})"


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _paragraphs(body: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n(?=    \S)", body) if part.strip()]


def _markdown(docstring: str) -> str:
    """A docstring's mark-up as Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", docstring)
    return text.replace("``", "`").strip()


def _cell(text: str) -> str:
    """Plain text within a table."""
    return re.sub(r"([|\\*_<\[])", r"\\\1", text)
