"""Read the fields of a record: texts, numbers, tools, arguments of the template."""

import json
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeGuard

from steps.data.readers import Cell, ListCell, ObjectCell
from steps.data.readers.lines import DECODER
from steps.data.rows.reasons import MalformedRow, Reason
from steps.data.rows.rows import Tools

_PLAIN = frozenset({list, str, dict, type(None)})
_DECIMAL = re.compile(
    r"\s*([+-]?(\d{1,40}\.?\d{0,40}|\.\d{1,40})(e[+-]?\d{1,3})?|nan)\s*", re.IGNORECASE | re.ASCII
)

MOST_NESTED = 100
"""How deep tools, tool calls and template arguments may be nested. Later code (templates, JSON,
comparisons) is recursive, and Python's own recursion limit depends on the caller."""


def found(record: Mapping[str, Any], field: str) -> Any:
    """The value of a field. `a.b` is the field `b` of the object in `a`, which may be JSON text,
    and `a.0` the first element of a list, unless the record has a field with the name `a.b`."""
    if field in record or "." not in field:
        return record.get(field)
    outer, _, inner = field.partition(".")
    within = parsed_json(record.get(outer))
    if is_list(within):
        within = {str(index): item for index, item in enumerate(within)}
    return found(within, inner) if is_object(within) else None


def parsed_json(value: Any) -> Any:
    """The value of a JSON text; other values and other texts are returned unchanged, also those of
    an object that has a key twice."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return DECODER.decode(value)
    except (ValueError, RecursionError):
        return value


def text(value: Any, field: str, reason: Reason = "content not a string") -> str:
    """A string that can be written as UTF-8."""
    value = as_written(value)
    if not isinstance(value, str):
        raise MalformedRow(reason, f"{field} is {show(value)}, expected a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise MalformedRow("not valid Unicode", f"{field}: {error}") from None
    return value


def as_written(value: Any) -> Any:
    """The text of a value that a file without types spells as JSON; other values unchanged."""
    return value.written if isinstance(value, ListCell | ObjectCell) else value


def score(record: Mapping[str, Any], field: str) -> float | None:
    """A number that may be absent."""
    return _number(found(record, field), field, "score not a number")


def scores_of(record: Mapping[str, Any], fields: Sequence[str]) -> list[float | None]:
    return [score(record, field) for field in fields]


def weight(record: Mapping[str, Any], field: str | None) -> float | None:
    """A row's weight, a number of at least 0; `None` if the format has no such field."""
    if field is None:
        return None
    value = _number(found(record, field), field, "weight not a number")
    if value is None or value < 0:
        said = "missing" if value is None else f"{value}, which is below 0"
        raise MalformedRow("weight not a number", f"{field} is {said}")
    return value


def _number(value: Any, field: str, reason: Reason) -> float | None:
    if value is None or (isinstance(value, Cell) and not value.strip()):
        return None
    if not is_number(value):
        raise MalformedRow(reason, f"{field} is {show(value)}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        raise MalformedRow(reason, f"{field} is out of range") from None
    if math.isnan(number):  # how tables written from data frames spell a missing number
        return None
    if math.isinf(number):
        raise MalformedRow(reason, f"{field} is infinite")
    return number


def is_number(value: Any) -> bool:
    """Whether a value is a number, or a text with one, as judges' ratings often are."""
    if isinstance(value, str):
        return _DECIMAL.fullmatch(value) is not None
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def for_template(record: Mapping[str, Any], names: Any) -> dict[str, Any]:
    """What the chat template gets besides messages, from the fields that a format names: tool
    descriptions, a list of objects, and arguments, an object; or these as JSON text. Absent or
    empty ones are `None`."""
    return {
        "tools": _tools(record, names.tools),
        "template_kwargs": _template_kwargs(record, names.template_kwargs),
    }


def _tools(record: Mapping[str, Any], field: str) -> Tools | None:
    value = parsed_json(found(record, field))
    if value is None or (is_list(value) and not value):
        return None
    if is_list(value):
        value = [parsed_json(tool) for tool in value]
    if not is_list(value) or not all(isinstance(tool, Mapping) for tool in value):
        raise MalformedRow("tools not a list of objects", f"{field} is {show(value)}")
    return tuple(plain(value, field))


def _template_kwargs(record: Mapping[str, Any], field: str) -> Mapping[str, Any] | None:
    value = parsed_json(found(record, field))
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise MalformedRow("template arguments not an object", f"{field} is {show(value)}")
    # In a table every row has every key; a key that a row does not set is null.
    return plain({key: item for key, item in value.items() if item is not None}, field) or None


def plain(value: Any, field: str) -> Any:
    """`value` as JSON that can be written: no dates, no NaN, no lone surrogates, no deep nest."""
    try:
        written = json.dumps(_spelled(value), allow_nan=False, ensure_ascii=False)
        written.encode()
    except UnicodeEncodeError as error:
        raise MalformedRow("not valid Unicode", f"{field}: {error}") from None
    except (TypeError, ValueError) as error:
        raise MalformedRow("unreadable value", f"{field}: {error}") from None
    return json.loads(written)


def _spelled(value: Any, depth: int = 0) -> Any:
    """A value in which cells have become what they spell."""
    if depth == MOST_NESTED:
        raise ValueError(f"nested over {MOST_NESTED} deep")
    if is_object(value):
        return {key: _spelled(item, depth + 1) for key, item in value.items()}
    if is_list(value):
        return [_spelled(item, depth + 1) for item in value]
    return parsed_json(value) if isinstance(value, Cell) else value


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    if type(value) in _PLAIN:  # asking an abstract class takes longer
        return type(value) is list
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return type(value) is dict if type(value) in _PLAIN else isinstance(value, Mapping)


def are_texts(value: Any) -> TypeGuard[Sequence[str]]:
    """Whether a value is a list of texts."""
    if not is_list(value) or not value or not isinstance(value[0], str):
        return False
    return all(isinstance(item, str) for item in value)


def texts_in(value: Any) -> Sequence[str] | None:
    """The texts of a list, or of its JSON text; else None."""
    listed = parsed_json(value) if isinstance(value, str) and value[:1] == "[" else value
    return listed if are_texts(listed) else None


def show(value: Any) -> str:
    """A short description that survives being written to a file, whatever the value holds."""
    if value is None:
        return "missing"
    kind = next((c for c in type(value).__mro__[:-1] if c.__module__ == "builtins"), type(value))
    return f"{kind.__name__} {reprlib.repr(value)}"
