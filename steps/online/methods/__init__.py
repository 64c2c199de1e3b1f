"""Methods of learning from a policy's own completions: one module a method, and shared code.

``method`` defines the interface of a method and ``experience`` its input; ``choices`` lists all
methods by name. ``policy_gradient`` has the settings of GRPO and its relatives, and ``grpo`` their
arithmetic. ``raft`` imitates the best completions, ``online_dpo`` learns from preferences between
them, ``distill`` from a teacher. Begin with ``grpo``.

A method does not depend on a sampler or on the loop. Uses ``steps.scoring``, ``steps.losses`` and
the objectives of ``steps.training``. The classes that a config names are importable without torch.
"""
