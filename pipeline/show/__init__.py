"""What people look at: the terminal, notebooks, reports and trackers.

``terminal`` prints a plan and results; begin there. ``live`` shows a run while it works, with what
``step_progress`` reads of its steps, and ``failures`` prints what went wrong. ``artifact_handle``
is an artifact as ``run`` returns it: ``loading`` opens its files as Python values, ``notebook``
draws it. ``results`` returns results as a table and compares them (``comparison``), ``metrics``
formats their numbers. ``views`` defines the shapes in which an artifact can show its content:
texts, curves, tables. ``metrics_log`` reads the metrics log of a step that still runs. ``report``
writes the HTML file, ``json_values`` the object of ``--json``; ``sinks`` send metrics to trackers.

Uses ``estimate``, ``plan``, ``wire``, ``store`` and what lies below them.
"""
