"""The JAX backend: the same scoring and training on processors and TPUs, with a decoder of our own.

Begin with ``decoder``, the model, which reads ``pack_arrays``; ``attending`` is its attention,
``architecture`` reads its facts from a Hugging Face config and ``stacked`` its weights from a
folder. ``rounds`` gives packs a few static shapes, ``devices`` spreads weights and packs over a
mesh, ``adamw`` updates. ``jax_scorer`` and ``jax_trainer`` do what `steps.scoring.scorer` and
`steps.training.trainer` ask for. ``fit`` compiles a step for TPUs that are not there, and
``command`` asks for it. ``influence`` says which rows pull a model where. ``config`` and
``backend_choice`` are the backend as a value in a config, importable without JAX.

Nothing reaches this room but by such a value, so an edit here leaves what torch computed as it is.
Uses ``steps.training``, ``steps.scoring`` and ``steps.models``.
"""
