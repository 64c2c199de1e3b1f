"""Evaluation: a model's preferences and answers, as metrics with confidence intervals.

``preferences`` evaluates logps of held-out pairs; ``paired``, ``length_control`` and
``calibration`` are its statistics. ``reward_pairs`` and ``best_of_n`` evaluate the scores of a
reward model. ``several_samples`` computes the share of right samples, and pass@k. ``answers``
evaluates answers to held-out prompts by the rules in ``answer_checks``. ``own_samples`` and
``divergence`` measure how far a model has moved from another.
``intervals`` computes confidence intervals. ``config`` is importable without torch.

Uses ``steps.scoring``, ``steps.generation``, ``steps.models``, ``steps.losses`` and ``steps.data``,
but not ``steps.training``.
"""
