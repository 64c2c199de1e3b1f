"""Values that `datasets` stores in another form than rows have: JSON as text, classes as numbers.

A table says so in its Arrow types (``extension<arrow.json>``) or in the features of its metadata
(``"_type": "Json"``, ``"_type": "ClassLabel"``), at any depth. Here they become plain values, once,
so no format looks for them. A number alone does not tell which class it means: 0 may be the good
one, so names replace numbers.

A JSON column holds the texts `42`, `true` and `[1]` as it holds the number, the boolean and the
list. So these stand for both, as cells of CSV do. Of a text in quotes the quotes are lost.

In a column of objects, every row has all keys, and keys that a row does not set are null.
`plain_row` removes these, so that a tool call has only its own arguments. An intended null cannot
be distinguished from them, except within JSON, whose nulls stay. Older versions of `datasets` save
a list of messages as an object that has a list for each of their keys; `plain_row` gives the
messages.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from steps.data.readers.cells import of_text
from steps.data.readers.lines import DECODER

if TYPE_CHECKING:  # a plan looks for files, and reads none
    import pyarrow as pa

Decode = Callable[[Any], Any]
_SAID = ({"role", "content"}, {"from", "value"})


def decoders(schema: "pa.Schema") -> dict[str, Decode]:
    """How the values of each column become plain; columns that are plain have none."""
    features = _features(schema.metadata)
    found = {f.name: _decoder(f.type, features.get(f.name)) for f in schema}
    return {column: decode for column, decode in found.items() if decode is not None}


def plain_row(record: Mapping[str, Any], decode: Mapping[str, Decode]) -> dict[str, Any]:
    """A row of a table with plain values and without the nulls within its objects; its columns
    stay.

    Raises:
        ValueError: a text that should be JSON is not.
    """
    return {
        column: _listed(decode.get(column, _set_keys)(value)) for column, value in record.items()
    }


def _features(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    try:
        found = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _decoder(kind: "pa.DataType", feature: Any) -> Decode | None:
    """The decoder of values of an Arrow type, to which `datasets` gave a feature; None: plain."""
    import pyarrow as pa

    said = feature if isinstance(feature, dict) else {}
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if isinstance(kind, pa.JsonType) or (is_text and said.get("_type") == "Json"):
        return _json
    if pa.types.is_integer(kind) and isinstance(names := said.get("names"), list):
        return partial(_named, names) if names else None
    if pa.types.is_map(kind):
        inner = _decoder(kind.item_type, None)
        return inner and partial(_values, inner)
    if pa.types.is_struct(kind):
        fields = said.get("feature", said) if said.get("_type") in ("Sequence", "List") else said
        fields = fields if isinstance(fields, dict) else {}
        found = {f.name: _decoder(f.type, fields.get(f.name)) for f in kind}
        inners = {name: inner for name, inner in found.items() if inner is not None}
        return partial(_fields, inners) if inners else None
    if hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        # within an object of lists, the feature of a list is that of its elements
        within = feature[0] if isinstance(feature, list) and feature else said.get("feature", said)
        inner = _decoder(kind.value_type, within)
        return inner and partial(_items, inner)
    return None


def _json(value: Any) -> Any:
    if value is None or value == "null":
        return None
    return DECODER.decode(value) if value[:1] == '"' else of_text(value)


def _named(names: Sequence[str], number: Any) -> Any:
    """The name of a class; -1, which is no class, is null."""
    if not isinstance(number, int) or not -1 <= number < len(names):
        return number
    return None if number == -1 else names[number]


def _items(inner: Decode, value: Any) -> Any:
    return [inner(item) for item in value] if isinstance(value, list) else value


def _values(inner: Decode, value: Any) -> Any:
    return {key: inner(item) for key, item in value.items()} if isinstance(value, dict) else value


def _fields(inners: Mapping[str, Decode], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    keys = {key: item for key, item in value.items() if item is not None}
    return {key: inners.get(key, _set_keys)(item) for key, item in keys.items()}


def _set_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _set_keys(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_set_keys(item) for item in value]
    return value


def _listed(value: Any) -> Any:
    """The messages of an object that has a list for each of their keys; any other value as it is.

    Objects of other keys stay, since answers with their places (`text`, `answer_start`) are no list
    of messages.
    """
    if not isinstance(value, dict) or not any(keys <= value.keys() for keys in _SAID):
        return value
    lists = {key: each for key, each in value.items() if each is not None}
    if not all(isinstance(each, list) for each in lists.values()):
        return value
    if len({len(each) for each in lists.values()}) > 1:
        return value
    messages = (zip(lists, item, strict=True) for item in zip(*lists.values(), strict=True))
    return [{key: each for key, each in message if each is not None} for message in messages]
