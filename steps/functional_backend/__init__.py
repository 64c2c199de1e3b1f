"""The functional torch backend: the gradient of a pack is a value, a function of the weights.

Begin with ``functional_trainer``, which computes logps and gradients as functions of the weights
(`torch.func`). ``functional_choice`` is the backend as a value in a config, importable without
torch. A backend of modules only adds gradients up; those of single examples give the gradient noise
scale.

Uses ``steps.training``, ``steps.scoring`` and ``steps.models``.
"""
