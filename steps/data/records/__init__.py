"""Read what a record holds: fields, messages, conversations. All formats use it.

Begin with ``record_fields``; ``one_message`` reads a message, ``conversations`` lists of them.

Uses ``readers`` and ``rows``.
"""
