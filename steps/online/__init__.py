"""Online training: what a policy draws, what that is worth, and learning from it.

``rollouts`` is the recording that everything goes through: token ids, never text. ``recording``
draws one with an engine, so that a killed run goes on where it was; ``judging`` puts verdicts on
one; ``selecting`` makes data of one, for trainers that know nothing of rollouts. Completions of
several turns are ``episodes`` of an environment, whose replies ``observed`` turns into tokens.

``iterations`` is the loop of online training, written once: a source gives an iteration's rollouts
(``sampled``, or ``iteration_rollouts`` for a recording), ``learning_from`` makes experience of
them, and ``updates`` takes the optimiser's steps with one of the ``methods``. ``online_run`` is a
segment of a run, from folders to folders, and ``config`` what it is told. Begin with ``rollouts``
and ``iterations``.

Uses ``steps.training``, ``steps.generation``, ``steps.checking``, ``steps.environments``,
``steps.scoring``, ``steps.models``, ``steps.losses`` and ``steps.data``.
"""
