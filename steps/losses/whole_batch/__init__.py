"""Losses over pairs that use statistics of the whole global batch (`needs_batch`).

A pass without gradients scores the batch before each step, at the cost of one forward. So a pair's
loss does not depend on how the batch is cut into forwards or shared by devices. Begin with ``aot``.
``quantiles`` matches sorted numbers. One file a loss. Uses ``steps.losses.base`` and
``steps.shared``.
"""
