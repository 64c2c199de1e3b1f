"""Differences between architectures that matter when a model reads many responses at once.

``pack_layouts`` names the three ways of reading and says which a model takes, ``batching`` is the
second of them (the first and the third are ``attention`` and ``unpacked``, a floor above).
``causality`` and ``masks`` are what ``parity`` looks at besides values before it chooses one, and
``in_float32`` keeps the rounding of 16 bits out of the values. ``routing`` is the load-balancing
loss of a mixture of experts, ``images`` what a model that sees makes of a prompt's images, and
``compiled_layers`` makes layers fast on a GPU. Begin with ``pack_layouts``.

Uses ``steps.models`` and, of ``steps.scoring``, examples, packs and attention.
"""
