"""What records look like; one module a format, each a frozen dataclass.

A format names the fields that it reads and turns a record into a row with ``parse(record, row)``,
which raises ``MalformedRow`` for a record that is none. Begin with ``preference``. ``choice`` knows
the formats by name and finds the one that fits, ``turns`` reads and checks messages for all of
them, ``layouts`` knows how popular data sets call their fields.

Uses ``readers`` and ``rows``.
"""
