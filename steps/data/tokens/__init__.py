"""Rows become token ids with masks: which tokens are trained on.

``tokenizing`` does it for conversations and completions; begin there. ``pairs`` does it for
preferences, ``texts`` for what has no turns. ``rendering`` applies the chat template, ``spans``
finds the assistant's turns in the text and ``tracing`` proves them, ``encoding`` makes ids,
``lengths`` cuts what is too long. ``token_shards`` and ``token_folders`` do all of it to files,
``token_tables`` has the columns; ``histograms`` and ``packing_report`` count lengths.

Uses ``images``, ``rows`` and ``work``.
"""
