"""Copies rows of a table without the values of other rows.

Some columns share values: those with a dictionary, and those of views, as polars writes them. A
slice of such a column refers to the values of all rows, so its size says nothing of its own rows.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a plan looks for files, and reads none
    import pyarrow as pa


def with_own_values(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """The same rows, each value in its own place. (Views of lists within objects or lists stay.)"""
    import pyarrow as pa

    columns = []
    for column in map(_without_views, batch.columns):
        own = _own(column.type)
        columns.append(column if column.type == own else column.cast(own))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _without_views(column: "pa.Array") -> "pa.Array":
    """Lists in place of views of lists, of which Arrow's own cast loses the last one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(column, pa.ListViewArray | pa.LargeListViewArray):
        return column
    compute: Any = pc
    lengths = compute.fill_null(compute.list_value_length(column), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), compute.cumulative_sum(lengths)])
    return pa.LargeListArray.from_arrays(offsets, column.flatten(), mask=column.is_null())


def _own(kind: "pa.DataType") -> "pa.DataType":
    """The type of the same values, each in its own place."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _own(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.large_string() if types.is_string_view(kind) else pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_own(field.type)) for field in kind])
    if types.is_map(kind):
        own_item = kind.item_field.with_type(_own(kind.item_type))
        return pa.map_(_own(kind.key_type), own_item, kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(_own_items(kind), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.list_ if types.is_list(kind) else pa.large_list)(_own_items(kind))
    return kind


def _own_items(kind: Any) -> "pa.Field":
    return kind.value_field.with_type(_own(kind.value_type))
