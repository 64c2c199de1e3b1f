"""The formats of records; one module a format, each a frozen dataclass.

A format names the fields that it reads. ``parse(record, row)`` turns a record into a row, or raises
``MalformedRow``. Begin with ``preference``. ``by_name`` lists them, ``choice``
finds one by name or by its records, and ``undecided`` says what to type where it cannot.
``layouts`` lists the field names of popular data sets.

Uses ``records``, ``readers`` and ``rows``.
"""
