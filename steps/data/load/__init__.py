"""Reads and selects rows of sources, and writes them as shards.

Begin with ``loading``, which does all of it. ``shards`` opens a source at any row, ``parsing``
turns a record into rows and ``prefetch`` does that in other processes. ``mixture`` draws from
several sources, ``split_names`` reads splits and parts from names of files, and ``splits`` decides
which rows are held out. ``overlap`` finds rows with the same text, ``near_duplicates`` rows with
nearly the same text, and ``language`` guesses the language of a text. ``file_advice`` guesses what
an unreadable file is. ``config`` has the settings.

Uses ``formats``, ``readers``, ``images``, ``rows`` and ``work``.
"""
