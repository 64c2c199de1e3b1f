"""Names in place of the numbers with which `datasets` stores the classes of a column (ClassLabel).

The numbers alone do not tell which class they mean: 0 may be the good one. A table keeps the names
in its metadata; of lists and objects they are not read.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Names = Mapping[str, Sequence[str]]
"""The names of the classes of each column that has some."""


def class_names(metadata: Mapping[bytes, bytes] | None) -> Names:
    """The names that the metadata of a table has."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        kinds = {column: kind for column, kind in features.items() if isinstance(kind, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    classes = {column: kind for column, kind in kinds.items() if kind.get("_type") == "ClassLabel"}
    return {column: kind["names"] for column, kind in classes.items() if kind.get("names")}


def named(record: Mapping[str, Any], names: Names) -> Mapping[str, Any]:
    """A record with the names of its classes; -1, which is no class, is null."""
    changed = {
        column: None if number == -1 else listed[number]
        for column, listed in names.items()
        if isinstance(number := record.get(column), int) and -1 <= number < len(listed)
    }
    return {**record, **changed} if changed else record
