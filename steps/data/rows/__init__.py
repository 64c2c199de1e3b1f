"""The kinds of rows, and the files that pass rows between steps.

Begin with ``rows``, which defines five kinds of rows. ``tables`` has their Parquet schemas;
``parquet`` and ``jsonl`` read and write files. ``reasons`` lists the reasons why a row is dropped,
``ledger`` records the outcome of every row. ``arithmetic`` generates the small verifiable task.
"""
