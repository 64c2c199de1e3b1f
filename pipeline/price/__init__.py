"""Estimates time, memory and disk of a plan's steps before they run.

``estimator`` defines what a step may declare for its estimates; begin there. ``machine`` knows the
hardware here, ``experience`` compares earlier attempts with their estimates, ``pricing`` estimates
every step of a plan, and ``remaining`` estimates the rest of a run.

An estimate is only for display: it is in no key. Where nothing is known, there is no estimate.
Uses ``plan``, ``store`` and what lies below them.
"""
