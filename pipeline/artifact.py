"""Artifacts and their kinds: what flows along the edges of a DAG.

A *kind* is a subclass of :class:`Artifact` that says what the files of an artifact are. A step
function takes kinds (``policy: Model``) and makes one (``@step(makes=Model)``), so an edge that
cannot work is refused when the DAG is built, long before a worker would trip over a missing file.
``Artifact`` itself is any kind. Kinds bear on no key: they check, they do not identify.

    class PairTokens(Artifact):
        \"""``tokens.parquet``: preference pairs as token ids.\"""

    class TokenizedPairs(Artifact):
        \"""One folder a split.\"""

        parts = PairTokens            # or {"train": PairTokens, "report": Table}
"""

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from pipeline.errors import TemperError
from pipeline.inputs import File


@dataclass(frozen=True)
class Artifact:
    """An input as a running step function sees it: a local folder of finished files.

    What the step that made it returned as metrics is not here: it is no part of what the artifact
    is, so nothing may depend on it.

    ``artifact / "tokens.parquet"`` is the path of a file in it.

    Attributes:
        parts: declared by a kind: the kind of each part (folder at the top), or of every part.
        views: declared by a kind: ``module:name`` of the function that says what there is to see of
            such an artifact; see :mod:`pipeline.views`.
        viewer: declared by a kind: ``module:function`` that prints one row of such an artifact,
            called with the URL of its files, the row's name, that of a split or ``None``, and a
            rich console; it raises ``LookupError`` where there is no such row.
    """

    path: Path
    step: str
    digest: str

    parts: ClassVar["type[Artifact] | Mapping[str, type[Artifact]] | None"] = None
    views: ClassVar[str | None] = None
    viewer: ClassVar[str | None] = None

    def __truediv__(self, name: str) -> Path:
        return self.path / name


Kind = type[Artifact]
KindOf = Callable[[Any], Kind | None]
"""The kind of a reference to a step's output; ``None`` for any other value."""


def kind_of_part(kind: Kind, part: str, step: str) -> Kind:
    """The kind of one part of an artifact.

    Raises:
        TemperError: the kind declares which parts there are, and this is none of them.
    """
    if isinstance(kind.parts, Mapping):
        if part not in kind.parts:
            known = ", ".join(sorted(kind.parts))
            raise TemperError(f"{step} makes {kind.__name__}, which has no part {part!r}: {known}")
        return kind.parts[part]
    return kind.parts or Artifact


def check_kinds(value: Any, annotation: Any, where: str, kind_of: KindOf) -> None:
    """Refuse a value that cannot be what a parameter's annotation asks for, as far as artifacts and
    dataclasses go.

    Args:
        where: names the step and parameter, as in ``train_dpo(policy)``.

    Raises:
        TemperError: an artifact of another kind, an artifact where none is taken, no artifact
            where one is, or another dataclass than is taken.
    """
    options = list(_options(annotation))
    given = kind_of(value)
    if any(option in (Any, object) for option in options):
        return
    kinds = [option for option in options if _is_kind(option)]
    if given is not None:
        if not any(issubclass(given, kind) or given is Artifact for kind in kinds):
            raise TemperError(f"{where} takes {_names(options)}, and was given {value}, "
                              f"which is {_indefinite(given)}")  # fmt: skip
        return
    if kinds and len(kinds) == sum(option is not type(None) for option in options):
        if value is not None or type(None) not in options:
            raise TemperError(
                f"{where} takes {_names(options)}, the output of a step, and was given {value!r}; "
                "adopt(PATH, KIND) makes a step of files that exist"
            )
        return
    if isinstance(value, str) and str not in options and any(map(_is_path, options)):
        raise TemperError(
            f"{where} takes {_names(options)}, and was given the text {value!r}, which would stand "
            f"for itself and not for what is in the file; pass File({value!r})"
        )
    _check_config(value, options, where)
    for item, expected, name in _within(value, options):
        check_kinds(item, expected, f"{where}{name}", kind_of)


def _check_config(value: Any, options: list[Any], where: str) -> None:
    """Refuse a dataclass where only others are taken: the wrong step for it, or it for the step."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    taken = [option for option in options if option is not type(None)]
    if all(map(dataclasses.is_dataclass, taken)) and not isinstance(value, tuple(taken)):
        raise TemperError(
            f"{where} takes {_names(options)}, and was given a {type(value).__name__}"
        )


def _options(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the annotation itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _options(member)
    else:
        yield Any if annotation is None or annotation == "" else annotation


def _within(value: Any, options: list[Any]) -> Iterator[tuple[Any, Any, str]]:
    """What a container or dataclass holds, with its annotation and how to name it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = annotations_of(type(value))
        for field in dataclasses.fields(value):
            yield getattr(value, field.name), hints.get(field.name, Any), f".{field.name}"
        return
    arguments = next((get_args(option) for option in options if get_args(option)), (Any,))
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield item, arguments[-1], f"[{key!r}]"
    elif isinstance(value, Sequence | Set) and not isinstance(value, str | bytes):
        fixed = isinstance(value, tuple) and len(arguments) == len(value)
        for index, item in enumerate(value):
            yield item, arguments[index if fixed else 0], f"[{index}]"


@cache
def annotations_of(definition: Any) -> Mapping[str, Any]:
    """Resolved annotations of a function or class; what cannot be resolved counts as ``Any``."""
    try:
        return get_type_hints(definition)
    except Exception:  # a name that exists for the type checker only
        return {}


def _is_kind(option: Any) -> bool:
    return isinstance(option, type) and issubclass(option, Artifact)


def _is_path(option: Any) -> bool:
    return isinstance(option, type) and issubclass(option, PurePath | File)


def _names(options: list[Any]) -> str:
    return " or ".join(getattr(o, "__name__", str(o)).replace("NoneType", "None") for o in options)


def _indefinite(kind: Kind) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
