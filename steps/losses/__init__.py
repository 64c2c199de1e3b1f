"""Losses: frozen settings and a pure function from log-probabilities to losses, one file a loss.

Begin with ``base``, which says what a loss is and which families there are. The losses that most
runs use lie here. The others have folders:

    ``with_reference``   pairs compared with a reference, from the logps of whole responses
    ``token_level``      the same, from the logps of tokens
    ``whole_batch``      the same, from statistics of the whole batch
    ``reference_free``   pairs alone
    ``unpaired``         single responses marked good or bad

A file that is put here or there is a loss that a config can name (``registry``). Steps do not come
through the registry, so an edit of one loss reaches those steps alone that are given it.

Importable without torch, and uses nothing of this project but ``steps.shared.checks``.
"""
