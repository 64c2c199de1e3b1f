"""Losses over pairs that look at statistics of the whole global batch (`needs_batch`).

A pass without gradients scores the batch before each step, so a pair's loss is the same function
however the batch is cut into forwards, and over how many devices. That pass costs a forward. Begin
with ``aot``. ``quantiles`` matches sorted numbers. One file a loss. Uses ``steps.losses.base`` and
``steps.shared.checks``.
"""
