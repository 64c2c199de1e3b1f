"""Losses over pairs that look at the log-probabilities of single tokens (`needs_tokens`).

Begin with ``ld_dpo``. ``ragged`` handles responses of different lengths that lie in one tensor.
One file a loss. Uses ``steps.losses.base`` and ``steps.shared.checks``.
"""
