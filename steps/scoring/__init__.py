"""Scoring: how likely a model finds given responses, and the gradient of a loss on that.

The way of a batch: ``examples`` (rows become checked groups of token ids) → ``packing`` (groups
become rows without padding) → ``embedding``, ``attention`` and ``head`` (a pack through the model)
→ ``logps`` (log-probabilities of tokens and responses). ``unpacked`` is the slow way for models
that can be neither packed nor batched; ``parity`` tries which way is right, with what the room
``architectures`` knows of models; ``scorer`` does it all beside the caller's thread,
``sharded_scorer`` over several devices. ``reference`` writes what was scored and reads it again,
``scored_by`` says how it was computed. ``config`` is importable without torch. Begin with
``logps``.

Knows no optimiser, no checkpoint and no training config: nothing here imports ``steps.training``,
so that an edit there leaves references and evaluations as they are. What is about gradients here
(``gradients``, ``softmax_backward``, ``forward_backward``) are functions that a scorer does not
reach. Uses ``steps.models``.
"""
