"""Checking: rules, without a model, that decide whether a completion is right.

Begin with ``verdicts``, which defines the interface of a checker. ``boxed``, ``exact``,
``pattern``, ``code`` and ``math_expression`` are checkers, one per file; ``checkers`` finds them by
name. ``judges`` runs a checker in separate processes, with a time limit for each verdict from
``config``.

Importable without torch. Uses nothing of this project but ``steps.shared.checks``.
"""
