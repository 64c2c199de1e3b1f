"""The protocol between drivers and workers; neither side imports the other.

``spec`` defines what passes through the store: the spec of an attempt, and the worker's report.
Begin there. ``launcher`` is the protocol of launchers, with the exit statuses of workers.
``lifeline`` ends workers when their driver is gone, ``presence`` shows a driver that a worker is
alive. ``forking`` is the protocol between a launcher and the parent of warm workers.

Uses ``store`` and what lies below it.
"""
