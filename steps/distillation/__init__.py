"""Distillation: a teacher's distribution over the vocabulary, computed once and kept.

``cached_teacher`` writes and reads it: at each scored token the likeliest ids, their
log-probabilities and the mass of the rest. ``distributions`` reads it of a teacher's logits, and a
student's log-probabilities of the same ids with their gradient. ``distilled`` trains a student on
it, and ``online_teacher`` is the teacher of an online run. ``distributions_compared`` compares two
models by what ``cached_teacher`` wrote of each. ``config`` is importable without torch.
Begin with ``cached_teacher``. The losses are in ``steps.losses.distillation``. Uses
``steps.scoring`` and ``steps.training``.
"""
