"""torchax in the place of the decoder, experimental: transformers' own model runs on JAX.

``torchax_model`` is that model as a function of weights, ``torchax_policy`` gives it to the trainer
of the JAX backend, and ``torchax_choice`` is the backend as a value in a config, importable without
torchax.
"""
