"""The kinds of rows, and the files that pass rows between steps.

``rows`` has the five kinds of rows; begin there. ``turn_order`` checks the turns of a conversation.
``tables`` is their schema in Parquet, ``parquet`` and ``jsonl`` read and write files. ``reasons``
are the reasons for which a row is left out, ``ledger`` says what became of every row.
``arrow_copy`` writes a data set of the library ``datasets`` as a file.
``completions`` reads sampled completions. ``arithmetic`` makes the small verifiable task, ``sums``
one of several steps, with a tool.
"""
