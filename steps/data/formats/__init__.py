"""The formats of records; one module a format, each a frozen dataclass.

A format names the fields that it reads. ``parse(record, row)`` turns a record into a row, or raises
``MalformedRow``. Begin with ``preference``. ``choice`` finds a format by name or by its records,
``layouts`` lists the field names of popular data sets. All formats read a record with
``conversations``, ``one_message`` and ``record_fields``.

Uses ``readers`` and ``rows``.
"""
