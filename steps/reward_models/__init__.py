"""Reward models: a language model's body with a head that gives each response one score.

Begin with ``head_scores``, which computes the scores of a pack and the gradient of a loss on them.
Packing, attention, the check of packing and the trainer are those of language models.
``classifier`` handles the model's folder, head and padding token, in the format that transformers,
TRL and inference engines load. ``bradley_terry`` is the loss, ``reward_training`` the run from
pairs to a folder. ``reward_scores`` scores groups of responses, and ``answer_scores`` completions,
which ``completion_tokens`` converts to groups. ``config`` and ``model_rewards`` have settings, and
are importable without torch.

Uses ``steps.training``, ``steps.scoring``, ``steps.models``, ``steps.losses`` and ``steps.data``.
The modules for scoring (``head_scores``, ``classifier``, ``reward_scores``, ``answer_scores``,
``completion_tokens``) do not use ``steps.training``.
"""
