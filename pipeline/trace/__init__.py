"""What a run of a step used beyond its key, and when it would be used again.

``counted`` has the rule for code: which statements and functions of the loaded modules count, and
their digests. ``source_parts`` says what each statement of a source file does and mentions. The
rule in words, with its limits, is in ``RULE.md`` beside it. Plans do not use the rule yet: today's
key holds the code that :mod:`pipeline.code` reads.
"""
