"""Read what a record holds: fields, messages, conversations. All formats use it.

Begin with ``record_fields``; ``one_message`` reads a message, ``conversations`` lists of
them, ``pair_sides`` both sides of a pair, and ``trained_turns`` which turns are trained on.

Uses ``readers`` and ``rows``.
"""
