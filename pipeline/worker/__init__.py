"""What runs where a launcher starts it: one attempt of one step.

``attempt`` is the entry, ``python -m pipeline.worker.attempt SPEC``; begin there. ``calling`` calls
the step function, ``content`` checks the files that it reads and describes those that it wrote,
``stopping`` tells it to leave, ``telling`` shows how far it is and what it does, ``spending`` what
it took, ``failure`` what went wrong. A step on several devices is ``torchrun`` on each node and
``rank`` in each process. ``warm`` is the parent that forks workers of steps that import the same
libraries, ``hidden`` keeps these libraries out of a worker's sight until its step imports them.

Uses ``price``, ``plan``, ``wire``, ``observed``, ``store`` and what lies below them; never
``launchers``.
"""
