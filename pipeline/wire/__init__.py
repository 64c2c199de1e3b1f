"""All that a driver and a worker say to each other; neither side imports the other.

``spec`` is what passes through the store: the spec of an attempt, and the worker's report. Begin
there. ``launcher`` is the protocol of whoever starts a worker, with its exit statuses. ``lifeline``
tells a worker that its driver is gone, ``presence`` tells a driver that a worker is alive.
``forking`` is how a launcher orders workers from a parent that forks them.

Uses ``store`` and what lies below it.
"""
