"""Online training: sample completions from a policy, judge them, and learn from them.

``rollouts`` is the recording that everything goes through: token ids, never text. ``recording``
draws one with an engine, so that a killed run goes on where it was; ``rewarding`` gives rewards to
one. ``selecting`` makes data of one, as ``selection`` says, for trainers that know nothing of
rollouts. Completions of several turns are ``episodes`` of an environment, whose replies
``environment_tokens`` turns into tokens.

``iterations`` is the loop of online training: a source gives an iteration's rollouts (``sampled``,
or ``iteration_rollouts`` for a recording), ``learning_from`` converts them to experience, and
``updates`` takes optimiser steps with one of the ``methods``. ``staleness`` lets the sampler work
while the trainer does. ``online_run`` runs a segment from folders to folders, and ``config`` has
the settings. Begin with ``rollouts`` and ``iterations``.

Uses ``steps.training``, ``steps.distillation``, ``steps.generation``, ``steps.checking``,
``steps.environments``, ``steps.scoring``, ``steps.models``, ``steps.losses`` and ``steps.data``.
"""
