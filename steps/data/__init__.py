"""Preference data: rows in, verified token sequences out.

- ``load``: sources become shards of rows. ``readers`` parse files, ``formats`` interpret
  records, with what ``records`` reads of them.
- ``rows``: the kinds of rows, their Parquet files, and the ledger with the outcome of each row.
- ``tokens``: rows become tokens with masks, through a chat template. Begin with
  ``tokens.tokenizing``.
- ``images``: those of rows, and what stands for them among tokens.
- ``work`` spreads files over processes and goes on after a kill. ``row_view`` shows one row of
  tokens. ``vocabularies`` finds whether a model means the same by their ids.

Uses ``shared``. Nothing here imports torch or ``pipeline``.
"""
