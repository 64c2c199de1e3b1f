"""Read what a record holds: fields, messages, conversations. All formats use it.

Begin with ``record_fields``; ``one_message`` reads a message, ``conversations`` lists of
them, and ``trained_turns`` which of these are trained on.

Uses ``readers`` and ``rows``.
"""
