"""What an annotation takes: how it is resolved, and what does not fit it, in words.

Annotations of step functions and of config dataclasses tell which values a setting takes. Only
plain types are compared: numbers, texts, containers, literals and enums.
"""

import ast
import contextlib
import enum
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pipeline.base.redaction import shown
from pipeline.base.text import cut


def misfit(value: Any, annotation: Any, default: Any = MISSING) -> str:
    """What a setting takes by its annotation and was given instead; empty if the value fits, or if
    the annotation has other types than those of settings.

    None fits, as defaults of many functions are None in spite of their annotation, and so does a
    list for a tuple. Where a default does not fit, as in ``size: int = "auto"``, the annotation
    says little, and everything fits. An artifact, a dataclass, a path or an enum is no concern of
    this.
    """
    options = (*options_of(annotation),)
    if value is None or type(value) not in _OF_SETTINGS or not all(map(_is_of_setting, options)):
        return ""
    if any(_fits(value, option) for option in options) or misfit(default, annotation):
        return ""
    takes = " or ".join(dict.fromkeys(map(_in_words, options)))
    is_text = type(value) is str
    given = f"the text {cut(shown(value), 60)!r}" if is_text else cut(shown(repr(value)), 60)
    return f"takes {takes}, and was given {given}{_meant(value, options)}"


@cache
def annotations_of(definition: Any) -> Mapping[str, Any]:
    """The resolved annotations of a function or class; empty if they cannot be resolved."""
    try:
        return get_type_hints(definition)
    except Exception:  # for example a name that only the type checker imports
        return {}


def options_of(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the annotation itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from options_of(member)
    else:
        yield Any if annotation is None or annotation == "" else annotation


_SEVERAL = (list, tuple, set, frozenset)
_WORDS: Mapping[Any, str] = {
    int: "a whole number (int)",
    float: "a number (float)",
    bool: "True or False (bool)",
    str: "a text (str)",
    dict: "a dict",
    type(None): "None",
    **{kind: f"a {kind.__name__}" for kind in _SEVERAL},
}
_OF_SETTINGS = _WORDS.keys()
"""The types of values and of annotations that :func:`misfit` knows, besides enums, dataclasses and
literals."""


def _is_of_setting(option: Any) -> bool:
    kind = get_origin(option) or option
    is_class = isinstance(kind, type)  # what is none may have no hash, as the annotation `[int]`
    return kind is Literal or (
        is_class and (kind in _OF_SETTINGS or issubclass(kind, enum.Enum) or is_dataclass(kind))
    )


def _fits(value: Any, option: Any) -> bool:
    kind, given = get_origin(option) or option, type(value)
    if kind is Literal:
        return value in get_args(option)
    if kind in _SEVERAL:
        return given in _SEVERAL
    if kind is bool:
        return given in (bool, int) and value in (0, 1)
    if kind in (int, float):  # Python takes a bool for a number, and so do type checkers
        return given in (kind, int, bool)
    if kind in _OF_SETTINGS:
        return given is kind
    # other checks see what is given for a dataclass, and a member of an enum by its name or value
    return is_dataclass(kind) or given in (str, int) or value in [m.value for m in kind]


def _in_words(option: Any) -> str:
    kind = get_origin(option) or option
    if kind is Literal:
        return " or ".join(map(repr, get_args(option)))
    inner = [t for t in get_args(option) if t is not ...]
    of = f" of {_PLURALS[inner[-1]]}" if inner and inner[-1] in _PLURALS else ""
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind))) + of


_PLURALS: Mapping[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}


_EXACT = 2**53
"""Below it, a float that is whole is the number that was written."""


def _meant(value: Any, options: Sequence[Any]) -> str:
    """What to write instead, if that is clear."""
    written = [value]
    if type(value) is str:
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            written.append(ast.literal_eval(value.strip().capitalize()))
    numbers = [v for v in written if type(v) in (bool, int, float) and abs(v) < _EXACT]
    wanted = [bool(v) for v in numbers if bool in options and v in (0, 1)]
    wanted += [int(v) for v in numbers if int in options and v == int(v)]
    wanted += written[1:]
    of_several = ((get_origin(option), get_args(option)) for option in options)
    wanted += [o([value]) for o, of in of_several if o in _SEVERAL and of[:1] == (type(value),)]
    for meant in wanted:
        if meant is not None and any(_fits(meant, option) for option in options):
            return f"; write {meant!r}"
    return ""
