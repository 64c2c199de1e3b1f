"""Losses over pairs that need no reference. Begin with ``cpo_hinge``.

One file a loss. Uses ``steps.losses.base`` and ``steps.shared.checks``.
"""
