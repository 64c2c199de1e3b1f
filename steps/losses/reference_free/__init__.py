"""Losses over pairs without a reference. Begin with ``cpo_hinge``.

One file a loss. Uses ``steps.losses.base`` and ``steps.shared.checks``.
"""
