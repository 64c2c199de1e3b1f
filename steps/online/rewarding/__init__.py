"""Rewards of completions that were sampled.

``judging`` puts a checker's verdicts and rewards on rollouts, or on a whole recording. ``rewards``
combines a checker and a reward model for a run that learns from what it samples. Begin there.

Uses ``steps.online.rollouts``, ``steps.generation``, ``steps.checking`` and ``steps.data``.
"""
