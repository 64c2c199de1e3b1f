"""Losses over pairs that use the log-probabilities of single tokens (`needs_tokens`).

Begin with ``ld_dpo``. ``ragged`` handles responses of different lengths in one tensor. One file per
loss. Uses ``steps.losses.base`` and ``steps.shared.checks``.
"""
