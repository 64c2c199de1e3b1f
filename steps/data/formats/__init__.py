"""The formats of records; one module a format, each a frozen dataclass.

A format names the fields that it reads. ``parse(record, row)`` turns a record into a row, or raises
``MalformedRow``. Begin with ``preference``. ``choice`` finds a format by name or by its records,
``turns`` reads and checks messages for all formats, ``layouts`` lists the field names of popular
data sets.

Uses ``readers`` and ``rows``.
"""
