"""Sources become shards of rows.

``loading`` does it all; begin there. ``shards`` opens a source at any row, ``mixture`` draws from
several sources, ``splits`` decides what is held out, ``overlap`` finds rows that say the same,
``near`` those that nearly do, ``language`` guesses what they are written in, ``config`` is what a
caller chooses.

Uses ``formats``, ``readers``, ``images``, ``rows`` and ``work``.
"""
