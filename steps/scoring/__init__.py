"""Scoring: log-probabilities of given responses, and the gradient of a loss on them.

The path of a batch: ``examples`` (rows become checked groups of token ids) → ``packing`` (groups
become rows without padding) → ``embedding``, ``attention`` and ``head`` (a pack through the model)
→ ``logps`` (log-probabilities of tokens and responses). ``unpacked`` is the slow path for models
that can be neither packed nor batched. ``parity`` chooses the path for a model, with the package
``architectures``. ``scorer`` runs all of this in its own thread, ``sharded_scorer`` on several
devices. ``reference`` writes and reads files of logps, and ``scored_by`` records how they were
computed. ``config`` is importable without torch. Begin with ``logps``.

This package has no optimiser, no checkpoint and no training config. It does not import
``steps.training``, so an edit there does not change the keys of references and evaluations. Its
functions for gradients (``gradients``, ``softmax_backward``, ``forward_backward``) are out of the
reach of a scorer. Uses ``steps.models``.
"""
