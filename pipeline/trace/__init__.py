"""What a run of a step used beyond its key, and when it would be used again.

``counted`` has the rule for code: which statements and functions of the loaded modules count, and
their digests. ``source_parts`` says what each statement of a source file does and mentions, and
``sources`` keeps that among the caches of the user. ``modules`` finds the modules of a project. The
rule in words, with its limits, is in ``RULE.md`` beside it.
"""
