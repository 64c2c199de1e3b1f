"""What people look at: the terminal, notebooks, reports and trackers.

``terminal`` prints a plan and results; begin there. ``live`` is the view of a run at work,
``failures`` says what went wrong. ``made`` is an artifact as ``run`` returns it, which ``loading``
opens and ``notebook`` draws. ``results`` has results as a table and side by side (``comparison``),
``metrics`` puts their numbers into words, ``views`` are the shapes of what there is to see of an
artifact. ``logged`` reads what a step has logged, ``under_way`` shows it of a step at work.
``report`` writes the HTML file, ``sinks`` hand metrics to W&B and TensorBoard.

Uses ``price``, ``plan``, ``wire``, ``store`` and what lies below them.
"""
