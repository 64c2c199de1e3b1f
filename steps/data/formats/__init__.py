"""What records look like; one module a format, each a frozen dataclass.

A format names the fields it reads and turns a record into a row with `parse(record, row)`, which
raises `MalformedRow` for a record that is none. `turns` reads and checks messages for all of them,
`registry` knows the formats by name.
"""
