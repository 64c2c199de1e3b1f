"""Generation: sample completions from a model, with their log-probabilities.

Begin with ``engine``, which defines the interface of a sampler. ``slots`` is the engine in this
process: ``cache`` has its keys and values, ``draws`` its random numbers, and ``weights`` replaces
its weights. ``alone`` is the slow engine for models that do not support slots, and ``choosing``
chooses between them. ``sampling`` samples completions of prompts with the settings in ``config``,
and groups them by row.

Uses ``steps.scoring``, ``steps.models`` and ``steps.shared.checks``.
"""
