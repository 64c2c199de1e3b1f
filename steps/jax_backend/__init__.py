"""The JAX backend: scoring and training on CPUs and TPUs, with its own decoder.

Begin with ``decoder``, the model, which reads ``pack_arrays``; ``attending`` is its attention,
``architecture`` reads its facts from a Hugging Face config and ``param_tree`` its weights from a
folder. ``static_batches`` gives packs a few static shapes, ``devices`` spreads weights and packs
over a mesh, ``jax_updates`` updates. ``jax_scorer`` and ``jax_trainer`` do what
`steps.scoring.scorer` and `steps.training.trainer` ask for. ``fitting`` compiles a step for devices
that are not there, and ``command`` asks for it. ``influence`` says which rows pull a model where.
``torchax_engine`` has transformers' model in the place of the decoder. ``config`` is the backend as
a value in a config and ``backend_choice`` what experiments offer; both are importable without JAX.

Only these settings lead to this package, so an edit here does not change the keys of torch's
results. Uses ``steps.training``, ``steps.scoring`` and ``steps.models``.
"""
