"""Losses that bring a student's distribution over the vocabulary near a teacher's.

Begin with ``distillation_loss``, the interface of the family; then ``forward_kl``. ``reverse_kl``
seeks what the teacher finds likely, ``jsd`` lies between both, and ``skew_kl`` and
``skew_reverse_kl`` compare with a mixture, which keeps gradients small. Uses ``steps.losses.base``.
"""
