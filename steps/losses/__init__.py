"""Losses: frozen settings and a pure function from log-probabilities to losses, one file a loss.

Begin with ``base``, which defines the interface and the families of losses. This folder holds the
losses that most runs use. The others are in folders:

    ``with_reference``   pairs compared with a reference, from the logps of whole responses
    ``token_level``      pairs compared with a reference, from the logps of tokens
    ``whole_batch``      pairs compared with a reference, from statistics of the whole batch
    ``reference_free``   pairs without a reference
    ``unpaired``         single responses labelled good or bad
    ``imitation``        single responses that are imitated
    ``distillation``     single responses, at each token with a teacher's distribution

A config can name every loss in these folders (``registry``). Steps do not import the registry, so
an edit of one loss changes only the keys of steps that use it.

Importable without torch. Uses nothing of this project but ``steps.shared``.
"""
