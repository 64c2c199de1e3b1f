"""Losses over single responses labelled good or bad. Begin with ``apo_zero_unpaired``.

One file a loss. Uses ``steps.losses.base`` and ``steps.shared.checks``.
"""
