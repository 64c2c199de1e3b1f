"""Sources become shards of rows.

Begin with ``loading``, which runs the whole process. ``shards`` opens a source at any row,
``mixture`` takes rows from several sources in turn, ``splits`` decides which prompts are held out,
``overlap`` finds duplicates, ``config`` has the settings.

Uses ``formats``, ``readers``, ``rows`` and ``work``.
"""
