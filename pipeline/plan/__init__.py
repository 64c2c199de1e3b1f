"""What exists, and what will run: a DAG with the state of each step, before anything runs.

``planning`` makes the plan; begin there. ``resolver`` decides whether an artifact may be used
again. ``why`` says what differs from the nearest artifact that is there, ``variants`` tells steps
of one name apart by their settings, ``labels`` says what each is called, ``renamed`` and
``unfinished`` give hints.

Uses ``observed``, ``store`` and what lies below them.
"""
