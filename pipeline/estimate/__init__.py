"""Estimates time, memory and disk of a plan's steps before they run.

``needs`` defines what a step may declare of its cost; begin there. ``past_runs`` reads what earlier
runs took, ``estimates`` scales that to the steps of a plan, ``remaining`` estimates the rest of a
run, and ``machine`` knows the hardware here.

An estimate is only for display: it is in no key. What nobody knows has no estimate. Uses ``plan``,
``store`` and what lies below them.
"""
