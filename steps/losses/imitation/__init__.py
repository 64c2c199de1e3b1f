"""Losses of supervised fine-tuning, over the tokens of responses that are imitated.

Begin with ``sft``; ``dft`` weighs unlikely tokens less. Uses ``steps.losses.base``.
"""
