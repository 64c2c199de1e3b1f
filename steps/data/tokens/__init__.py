"""Rows become token ids with masks: which tokens are trained on.

Begin with ``tokenizing``, which tokenises conversations and completions. ``pairs`` tokenises
preference pairs, ``texts`` plain texts. ``rendering`` applies the chat template, ``spans`` finds
the assistant's turns in the text and ``tracing`` proves them. ``call_arguments`` finds out how a
template takes the arguments of calls. ``encoding`` makes ids, ``lengths`` cuts long rows.
``token_shards`` and ``token_folders`` process files and folders, ``token_tables`` has the columns,
``length_summaries`` summarises lengths. ``config`` has the settings.

Uses ``images``, ``rows`` and ``work``.
"""
