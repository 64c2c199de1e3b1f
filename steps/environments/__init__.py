"""Environments: tools, games and the like that answer a policy in an episode of several turns.

Begin with ``environment``, which defines the two functions of an environment, `reset` and `step`.
``calculator`` is an example, and ``environments`` lists all by name. ``playing`` runs environments
in the processes that run checkers (``steps.checking.judges``), which have a time limit and can be
killed.

Importable without torch; uses ``steps.checking`` and ``steps.shared``.
"""
