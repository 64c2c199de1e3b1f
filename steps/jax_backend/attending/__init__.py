"""Attention of a pack's tokens to what they see: three integers of a token say that (`PackArrays`).

``query_blocks`` is XLA's, for every model. ``prefix_kernel`` is a TPU kernel in Pallas, for models
whose tokens see far, over the blocks of ``kernel_grid``; ``with_kernel`` spreads it over devices.
"""
