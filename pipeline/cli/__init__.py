"""The ``temper`` command: what one asks of a store and does to it, over the core.

``app`` declares the commands; begin there. ``naming`` finds the artifact that a person means,
``present`` and ``project`` the code that its step has now. ``compare``, ``run_diff``,
``explanation`` and ``rows`` answer questions, ``printing`` prints the answers. ``reports`` has what
``temper report`` and ``ui`` tell of. ``recipes`` runs what ships with Temper, ``start`` makes
projects, ``tune`` starts a study. ``keep`` holds the commands that change a store.

Uses every room; commands of packages use ``naming``, and nothing else uses it.
"""

from pipeline.cli.app import app, main

__all__ = ["app", "main"]
