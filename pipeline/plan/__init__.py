"""The plan: which artifacts exist and which steps will run, before anything runs.

``planning`` makes the plan; begin there. ``resolver`` decides whether an artifact may be reused.
``rerun_reasons`` explains how a step differs from its nearest artifact. ``variants`` finds the
settings that distinguish steps of one name, ``labels`` their display names. ``unfinished`` finds
scratch to resume from. ``expected`` compares a plan with the tags that its steps must have.

Uses ``observed``, ``store`` and what lies below them.
"""
