"""Reward models: a language model's body with one number at the end of a response.

Begin with ``values`` (what is read off a pack, and the gradient of a loss on it); packing,
attention, the check of packing and the trainer are those of language models. ``classifier`` is the
model as a folder that transformers, TRL and inference engines load: its head, its padding token.
``bradley_terry`` is the loss, ``reward_training`` a run from pairs to a folder; ``reward_scores``
scores groups of responses, ``answered`` makes such groups of completions. ``config`` is importable
without torch.

Uses ``steps.training``, ``steps.scoring``, ``steps.models``, ``steps.losses`` and ``steps.data``.
What scores (``values``, ``classifier``, ``reward_scores``, ``answered``) knows no training.
"""
