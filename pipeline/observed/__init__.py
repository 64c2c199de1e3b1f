"""Observes what a step uses while it runs and no key contains.

``observation`` is the audit hook of a worker; begin there. ``taps`` notes what has no audit event,
``marks`` records which functions ran, ``natives`` notes files that native code opens. ``snapshot``
serves project modules from the bytes that were hashed. A Python that the step starts joins through
``started`` and ``joining``. ``discovery`` derives the discovered dependencies of an artifact from
the observation, and tells a plan whether they have changed since.

Uses ``store`` and what lies below it.
"""
