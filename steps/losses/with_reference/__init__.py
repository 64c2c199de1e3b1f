"""Losses over pairs that compare the policy with a reference, by the logps of whole responses.

Each is a function of the log-ratios of the chosen and of the rejected response. Begin with
``exo_pair``. One file a loss. Uses ``steps.losses.base`` and ``steps.shared.checks``.
"""
