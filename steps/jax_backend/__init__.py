"""The JAX backend: scoring and training on CPUs and TPUs, with its own decoder.

Begin with ``decoder``, the model; ``architecture`` reads its structure from a Hugging Face config
and ``stacked`` its weights from a folder. ``rounds`` gives packs a few static shapes, ``devices``
shards weights and packs over a mesh, ``adamw`` is the optimiser. ``jax_scorer`` and ``jax_trainer``
implement the interfaces of `steps.scoring.scorer` and `steps.training.trainer`. ``fit`` compiles a
step for TPUs that need not be present, and ``command`` is its command line. ``influence`` computes
the influence of rows. ``config`` and ``backend_choice`` are the backend's settings, importable
without JAX.

Only these settings lead to this room, so an edit here does not change the keys of torch's results.
Uses ``steps.training``, ``steps.scoring`` and ``steps.models``.
"""
