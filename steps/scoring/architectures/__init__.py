"""Differences between architectures that matter when a model reads many responses at once.

``pack_layouts`` names the three ways of reading and records which one a model uses. ``batching``
implements the second way; the first and the third are ``attention`` and ``unpacked``, one folder
above. ``parity`` uses ``causality`` and ``masks`` when it chooses a way. ``routing`` is the
load-balancing loss of a mixture of experts. Begin with ``pack_layouts``.

Uses ``steps.models`` and, of ``steps.scoring``, examples, packs and attention.
"""
