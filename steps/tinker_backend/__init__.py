"""Training on a server that speaks Tinker's API: it holds the model and trains an adapter.

Begin with ``tinker_trainer``, which sends tokens and gradients by their logps. ``tinker_wire``
alone knows the SDK; ``tinker_choice`` is the backend as a value in a config, importable without
torch.
Losses are computed here, in float64, as on every backend.

Uses ``steps.training``, ``steps.scoring`` and ``steps.models``.
"""
