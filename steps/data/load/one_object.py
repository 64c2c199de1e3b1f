"""What to do with a file that is one object, in which its rows lie deeper."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

_ASKED = {"prompt", "instruction", "question", "query", "tools"}
"""Fields by which an object is a row itself."""

COLUMNS = "it is one object of columns: write one object a row, as pandas' orient='records' does"


def advice(records: Sequence[Mapping[str, Any]]) -> str:
    """How to get at the rows, where the only record of a file holds them; else empty."""
    if len(records) != 1:
        return ""
    (record,) = records
    if (place := _place_of_rows(record)) and not _ASKED & record.keys():
        path = shlex.quote("".join(f".{json.dumps(name, ensure_ascii=False)}" for name in place))
        return (
            f"it is one object, whose field {'.'.join(place)} holds the rows: write that list "
            f"alone, as in `jq {path} FILE.json > rows.json`"
        )
    if _are_rows_by_name(record):
        return (
            "it is one object with a row in each field: write its rows as a list, as in "
            "`jq '[.[]]' FILE.json > rows.json`"
        )
    # As pandas' orient="split" and tables of W&B.
    is_frame = all(isinstance(record.get(name), list) for name in ("columns", "data"))
    return COLUMNS if is_frame or are_columns(record) else ""


def _place_of_rows(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the fields that lead to the first list of rows, at most two, rather one."""
    deeper = ((n, i) for n, value in record.items() if isinstance(value, Mapping) for i in value)
    places = [(name,) for name, value in record.items() if _are_rows(value)]
    places += [(name, inner) for name, inner in deeper if _are_rows(record[name][inner])]
    return next(iter(places), ())


def _are_rows_by_name(record: Mapping[str, Any]) -> bool:
    """Whether an object has nothing but rows with the same fields."""
    rows = list(record.values())
    if len(rows) < 2 or not all(isinstance(row, Mapping) for row in rows):
        return False
    return all(row.keys() == rows[0].keys() for row in rows) and not {"role", "0"} & rows[0].keys()


def are_columns(record: Mapping[str, Any]) -> bool:
    """Whether an object has a list for each column of a table, with as many values each."""
    columns = [value for value in record.values() if _is_column(value)]
    return len({len(column) for column in columns}) == 1 and len(columns) == len(record) > 1


def _is_column(value: Any) -> bool:
    """Whether a value is a list, but not of objects, or an object whose keys count from 0."""
    if isinstance(value, list):
        return not any(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping) and "0" in value


def _are_rows(value: Any) -> bool:
    """Whether a value is a list of objects that are no messages."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(i, Mapping) and not {"role", "from"} & i.keys() for i in value)
