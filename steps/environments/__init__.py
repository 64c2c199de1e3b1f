"""Environments: what a policy talks to in an episode of several turns, such as a tool or a game.

Begin with ``environment``, which says what an environment is: `reset` and `step`. ``calculator`` is
one, and ``environments`` knows them by name. ``playing`` lets the processes that judge
(``steps.checking.judges``) reply to turns too, so that foreign code can be killed and has a clock.

Importable without torch; uses ``steps.checking`` and ``steps.shared``.
"""
