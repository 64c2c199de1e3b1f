"""How many rows a matrix product is given, so that a row's result does not depend on the others.

Kernels of matrix products process the last few rows of some counts differently. With a multiple of
eight rows, and at least 32, a row's result on a CPU has the same bits beside any other rows.
"""

_ROW_MULTIPLE, _FEWEST_ROWS = 8, 32


def padded_rows(rows: int) -> int:
    """The number of rows to which `rows` of a matrix product are padded."""
    return max(_FEWEST_ROWS, -(-rows // _ROW_MULTIPLE) * _ROW_MULTIPLE)
