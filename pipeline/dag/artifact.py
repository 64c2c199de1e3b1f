"""Artifacts and their kinds: what flows along the edges of a DAG.

A *kind* is a subclass of :class:`Artifact` that defines what files an artifact has. A step function
takes kinds (``policy: Model``) and makes one (``@step(makes=Model)``). So an edge that cannot work
is refused when the DAG is built, and not only when a worker misses a file. ``Artifact`` itself
stands for any kind. Kinds are in no key; the trace of a step names the kinds of its inputs.

    class PairTokens(Artifact):
        \"""``tokens.parquet``: preference pairs as token ids.\"""

    class TokenizedPairs(Artifact):
        \"""One folder for each split.\"""

        parts = PairTokens            # or {"train": PairTokens, "report": Table}
"""

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal, TypeGuard, Union, get_args, get_origin

from pipeline.base.annotations import annotations_of, misfit, options_of
from pipeline.base.errors import TemperError
from pipeline.base.redaction import shown
from pipeline.dag.canonical import DEEPEST, too_deep
from pipeline.dag.conversions import converted_fields
from pipeline.dag.inputs import File, HubModel


class FolderPath:
    """A folder that is its path, for ``open`` and f-strings; ``/`` is the path of a file in it."""

    path: Path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__


@dataclass(frozen=True)
class Artifact(FolderPath):
    """An input as a running step function sees it: a local folder of finished files.

    It does not contain the metrics of the step that made it: these do not identify the artifact, so
    no result may depend on them.

    ``artifact / "tokens.parquet"`` is the path of a file in it, and the artifact itself is the path
    of the folder: for ``open``, ``os`` and f-strings.

    Attributes:
        parts: declared by a kind: the kind of each part (a top-level folder), or of every part.
        views: declared by a kind: ``module:name`` of the function that makes views of an artifact;
            see :mod:`pipeline.show.views`.
        assemble: declared by a kind whose artifacts may rest on another: they hold what differs,
            and its digest. ``module:function`` is called with the folder of an artifact, an empty
            folder, and a function from the digest of an artifact to its folder, which is whole. It
            writes the whole artifact and returns true; or returns false if the first folder is
            whole. So steps and commands only see whole ones.
        viewer: declared by a kind: ``module:function`` that prints one row of an artifact. Its
            arguments are the URL of the artifact's files, the row's name, the name of a split or
            ``None``, and a rich console. It raises ``LookupError`` if there is no such row.
    """

    path: Path
    step: str
    digest: str

    parts: ClassVar["type[Artifact] | Mapping[str, type[Artifact]] | None"] = None
    views: ClassVar[str | None] = None
    assemble: ClassVar[str | None] = None
    viewer: ClassVar[str | None] = None


Kind = type[Artifact]
KindOf = Callable[[Any], Kind | None]
"""The kind of a reference to a step's output; ``None`` for any other value."""
_SCALARS = (bool, int, float, str, bytes)


def kind_of_part(kind: Kind, part: str, step: str) -> Kind:
    """The kind of one part of an artifact.

    Raises:
        TemperError: the kind declares its parts, and this is none of them.
    """
    if isinstance(kind.parts, Mapping):
        if part not in kind.parts:
            known = ", ".join(sorted(kind.parts))
            raise TemperError(f"{step} makes {kind.__name__}, which has no part {part!r}: {known}")
        return kind.parts[part]
    return kind.parts or Artifact


def check_kinds(
    value: Any,
    annotation: Any,
    where: str,
    kind_of: KindOf,
    depth: int = 0,
    default: Any = dataclasses.MISSING,
) -> None:
    """Refuse a value that does not match a parameter's annotation.

    Args:
        where: names the step and parameter, such as ``train_dpo(policy)``.
        depth: the nesting depth of the value within the argument.
        default: the default of the parameter or field.

    Raises:
        TemperError: the value is an artifact of the wrong kind, an artifact in place of another
            value or the reverse, an instance of the wrong dataclass, or a number, text or list
            where the annotation has another of these.
    """
    try:
        taken = _known(annotation)
    except TypeError:  # the annotation is not hashable, such as `Annotated` with a list
        taken = _Taken.by(annotation)
    given = kind_of(value)
    if taken.anything:
        return
    if given is not None or taken.only_kinds:
        _check_artifact(value, given, taken, where)
        return
    _check_text(value, taken, where)
    if value is not None and taken.only_configs and not dataclasses.is_dataclass(value):
        takes = f"{where} takes {_names(taken.options)}"
        if File in taken.options and not isinstance(value, _SCALARS):
            raise TemperError(
                f"{takes}, and was given a {type(value).__name__}: write the rows to a file, as "
                "rows.jsonl, and give File('rows.jsonl'), whose content is hashed"
            )
        raise TemperError(
            f"{takes}, and was given {reprlib.repr(value)}; write "
            f"{_names(taken.options[:1])}(NAME=VALUE)"
        )
    is_scalar = value is None or isinstance(value, _SCALARS)
    if not is_scalar:
        _check_config(value, taken.options, where)
        _check_container(value, taken.options, where)
    if type(value) not in taken.options and (wrong := misfit(value, annotation, default)):
        raise TemperError(f"{where} {wrong}")
    if is_scalar:
        return
    if depth > DEEPEST:
        raise too_deep(where)
    for item, expected, name, default in _within(value, taken.options):
        check_kinds(item, expected, f"{where}{name}", kind_of, depth + 1, default)


@dataclass(frozen=True)
class _Taken:
    """An annotation, analysed once, since it may apply to millions of values."""

    options: tuple[Any, ...]
    anything: bool
    kinds: tuple[Kind, ...]
    only_kinds: bool
    no_text_but_paths: bool
    only_configs: bool

    @classmethod
    def by(cls, annotation: Any) -> "_Taken":
        options = tuple(options_of(annotation))
        classes = [option for option in options if isinstance(option, type)]
        kinds = tuple(option for option in classes if issubclass(option, Artifact))
        return cls(
            options,
            any(option in (Any, object) for option in options),
            kinds,
            bool(kinds) and len(kinds) == sum(option is not type(None) for option in options),
            str not in options and any(issubclass(option, Path | File) for option in classes),
            all(dataclasses.is_dataclass(o) or o is type(None) for o in options),
        )


_known = cache(_Taken.by)


def _check_artifact(value: Any, given: Kind | None, taken: _Taken, where: str) -> None:
    """Refuse an artifact of another kind than those allowed, and another value if only artifacts
    are allowed."""
    if given is not None:
        if not any(issubclass(given, kind) or given is Artifact for kind in taken.kinds):
            article = "an" if given.__name__[0] in "AEIOU" else "a"
            raise TemperError(f"{where} takes {_names(taken.options)}, and was given {value}, "
                              f"which is {article} {given.__name__}")  # fmt: skip
    elif value is not None or type(None) not in taken.options:
        raise TemperError(
            f"{where} takes {_names(taken.options)}, the output of a step, and was given "
            f"{reprlib.repr(value)}; adopt(PATH, KIND) makes a step of files that exist"
        )


def _check_text(value: Any, taken: _Taken, where: str) -> None:
    """Refuse a text, or a path, that probably means a file."""
    is_path = isinstance(value, PurePath) and taken.only_configs
    if not taken.no_text_but_paths or not (isinstance(value, str) or is_path):
        return
    text = shown(str(value))
    hub = "/" in text and any(option is HubModel for option in taken.options)
    raise TemperError(
        f"{where} takes {_names(taken.options)}, and was given the text {text!r}, which would "
        f"stand for itself and not for what is in the file; pass File({text!r})"
        + (f", or HubModel({text!r}) if that is its name on the Hub" if hub else "")
    )


def _check_config(value: Any, options: tuple[Any, ...], where: str) -> None:
    """Refuse a dataclass if the annotation allows only other dataclasses."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    taken = [option for option in options if option is not type(None)]
    if all(map(dataclasses.is_dataclass, taken)) and not isinstance(value, tuple(taken)):
        given = type(value).__name__
        if any(option.__name__ == given for option in taken):
            given += f" of another module, {type(value).__module__}"
        raise TemperError(f"{where} takes {_names(options)}, and was given a {given}")


def _check_container(value: Any, options: tuple[Any, ...], where: str) -> None:
    """Refuse a list if only dicts are allowed, and a dict if only lists are."""
    taken = [get_origin(option) or option for option in options if option is not type(None)]
    if not all(isinstance(option, type) for option in taken):
        return
    names = " or ".join(str(option) for option in options)
    if all(issubclass(option, Mapping) for option in taken) and _is_list(value):
        raise TemperError(
            f"{where} takes {names}, and was given a {type(value).__name__}; give a dict with a "
            "name for each, as in {'first': …}"
        )
    if all(issubclass(option, Sequence | Set) for option in taken) and isinstance(value, Mapping):
        raise TemperError(f"{where} takes {names}, and was given a dict; give a list")


def _is_list(value: Any) -> TypeGuard[Sequence[Any] | Set[Any]]:
    return isinstance(value, Sequence | Set) and not isinstance(value, str | bytes)


def _within(value: Any, options: tuple[Any, ...]) -> Iterator[tuple[Any, Any, str, Any]]:
    """The items of a container or dataclass, each with its annotation, its name in errors and its
    default."""
    none = dataclasses.MISSING
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for name, annotation, default in _fields_of(type(value)):
            yield getattr(value, name), annotation, f".{name}", default
        return
    held = _of_items(value, options)
    if isinstance(value, Mapping):
        for (key, item), expected in zip(value.items(), held, strict=False):
            yield item, expected, f"[{key!r}]", none
    elif _is_list(value):
        for index, (item, expected) in enumerate(zip(value, held, strict=False)):
            yield item, expected, f"[{index}]", none


@cache
def _fields_of(cls: type) -> Sequence[tuple[str, Any, Any]]:
    """The fields of a dataclass, each with the annotation of what it holds, and its default."""
    hints = {**annotations_of(cls), **dict.fromkeys(converted_fields(cls), Any)}
    fields = dataclasses.fields(cls)
    return [(field.name, hints.get(field.name, Any), field.default) for field in fields]


def _of_items(value: Any, options: tuple[Any, ...]) -> Iterator[Any]:
    """What each item of a list, or value of a mapping, is annotated as: it may be meant by any
    member of a union that has such containers."""
    each = [held for option in options if (held := _held(value, option))] or [(Any,)]
    if any(held[1:] for held in each):
        return map(_union, zip(*(h if h[1:] else repeat(h[0]) for h in each), strict=False))
    return repeat(_union([held[0] for held in each]))


def _held(value: Any, option: Any) -> tuple[Any, ...]:
    """What one annotation says of the items of a list or mapping: one for all, or one for each;
    empty if it takes no such value."""
    kind, arguments = get_origin(option) or option, get_args(option)
    if not isinstance(kind, type):  # such as a type variable, which may stand for anything
        return () if kind is Literal else (Any,)
    if not issubclass(kind, Iterable) or issubclass(kind, str | bytes):
        return ()
    if isinstance(value, Mapping):
        if issubclass(kind, Mapping):
            return arguments[-1:] or (Any,)
        return () if issubclass(kind, Sequence | Set) else (Any,)
    if issubclass(kind, Mapping):
        return ()
    if kind is not tuple or arguments[1:] == (...,):
        return arguments[:1] or (Any,)
    return arguments if len(arguments) == len(value) else (Any,)


def _union(annotations: Sequence[Any]) -> Any:
    try:
        return Union[(*annotations,)] if len(annotations) > 1 else annotations[0]
    except TypeError:  # one of them is no type, such as `[int]`
        return Any


def _names(options: tuple[Any, ...]) -> str:
    return " or ".join(getattr(o, "__name__", str(o)).replace("NoneType", "None") for o in options)
