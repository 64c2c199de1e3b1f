"""Online training: sample completions from a policy, judge them, and learn from them.

``rollouts`` is the format in which completions are recorded: token ids, never text. ``recording``
samples them with an engine, so that a killed run resumes; ``judging`` adds verdicts; ``selecting``
converts them to training data for other trainers.

``iterations`` is the loop of online training: a source gives an iteration's rollouts (``sampled``,
or ``iteration_rollouts`` for a recording), ``learning_from`` converts them to experience, and
``updates`` takes optimiser steps with one of the ``methods``. ``online_run`` runs a segment from
folders to folders, and ``config`` has the settings. Begin with ``rollouts`` and ``iterations``.

Uses ``steps.training``, ``steps.generation``, ``steps.checking``, ``steps.scoring``,
``steps.models``, ``steps.losses`` and ``steps.data``.
"""
