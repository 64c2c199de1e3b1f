"""Sources become shards of rows.

``loading`` does it all; begin there. ``shards`` opens a source at any row, ``mixture`` draws from
several sources, ``splits`` decides what is held out, ``overlap`` finds rows that say the same,
``config`` is what a caller chooses.

Uses ``formats``, ``readers``, ``rows`` and ``work``.
"""
