"""Evaluation: what a model prefers, what it writes, and how sure one may be of either.

``preferences`` judges logps of held-out pairs (``paired``, ``length_control`` and ``calibration``
are its statistics), ``reward_pairs`` and ``best_of_n`` the scores of a reward model, ``answers``
what is written for held-out prompts (by ``matches``, which are rules), ``own_samples`` and
``divergence`` how far a model has moved from another, ``harness`` asks it tasks. ``intervals`` says
how sure one may be. ``config`` is importable without torch.

Uses ``steps.scoring``, ``steps.generation``, ``steps.models``, ``steps.losses`` and ``steps.data``,
and no training.
"""
