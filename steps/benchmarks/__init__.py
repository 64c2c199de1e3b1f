"""Benchmarks of others: what a suite asks, a model's answers, and the scores, each by itself.

A suite runs twice without a model: ``suites`` says which there are, and ``lm_eval_suite`` and
``inspect_suite`` adapt them. First the suite writes down its ``questions``. Then ``answering``
answers them with a model, and at last the suite scores these answers. So another metric asks a
model nothing. ``config`` is importable without torch or a suite.

Uses ``steps.online`` (recordings of samples), ``steps.evaluation`` (intervals), ``steps.scoring``,
``steps.generation``, ``steps.models`` and ``steps.data``.
"""
