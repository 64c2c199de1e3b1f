"""The functional torch backend: the state of training is a value, and a step maps it to the next.

Begin with ``functional_trainer``, which computes logps and gradients as functions of the weights
(`torch.func`); ``pure_updates`` has the state and its update. ``functional_choice`` is the backend
as a value in a config, importable without torch. The gradient of a pack is a value too, which a
backend of modules only adds up: of single examples it gives the gradient noise scale.

Uses ``steps.training``, ``steps.scoring`` and ``steps.models``.
"""
