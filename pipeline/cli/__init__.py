"""The ``temper`` command.

``app`` declares the commands; begin there. ``naming`` finds the artifact that a name means;
``present`` and ``project`` find the present code of its step. ``compare``, ``run_diff``,
``explanation`` and ``rows`` compute answers, and ``printing`` prints them. ``reports`` selects what
``temper report`` and ``ui`` show. ``recipes`` runs the shipped experiments, ``start`` makes
projects, ``tune`` starts a study. ``keep`` holds the commands that change a store.

Uses every room. Commands of other packages may use ``naming``; nothing else uses this room.
"""

from pipeline.cli.app import app, main

__all__ = ["app", "main"]
