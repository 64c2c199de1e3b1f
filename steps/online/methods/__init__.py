"""How a policy learns from what it has drawn: one module a method, and what they share.

``method`` says what a method is and ``experience`` what it is given; ``choices`` has all of them by
name. ``policy_gradient`` is GRPO and its relatives as settings, ``advantages`` and ``policy_loss``
are their arithmetic, and ``policy_batch`` brings these to the trainer. ``raft`` imitates and
``online_dpo`` prefers. Begin with ``policy_loss``.

A method knows neither a sampler nor the loop. Uses ``steps.scoring``, ``steps.losses`` and, of
``steps.training``, its objectives; what is named in a config is importable without torch.
"""
