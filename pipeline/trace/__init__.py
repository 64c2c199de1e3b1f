"""Which code of a run counts: the rule, and the facts about source files that it needs.

``counted`` has the rule for code: which statements and functions of the loaded modules count, and
their digests. ``source_parts`` says what each statement of a source file does and mentions, and
``sources`` keeps that in the cache of the user. ``looks`` leaves out names, places and texts,
``modules`` finds the modules of a project, and ``reach`` those that others may import. ``changes``
says what has changed. The rule in words, with its limits, is in ``RULE.md`` beside it.
"""
