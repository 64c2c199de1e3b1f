"""Checking: rules that say whether a completion is right, with no model of ours in them.

Begin with ``verdicts``, which says what a checker is. ``boxed``, ``exact``, ``pattern``, ``code``,
``math_expression`` and ``llm_judge`` are checkers, one file each; ``checkers`` knows them by name.
``programs`` finds the program in a text and the form of its tests, and ``sandbox`` is the script
that runs both for ``code``. ``judges`` runs a checker in processes that can be
killed, each verdict with a clock of its own, as ``config`` says; ``kept_verdicts`` are those that
were paid for. ``compared`` says what a judge of two completions is.

Importable without torch, and uses nothing of this project but ``steps.shared``.
"""
