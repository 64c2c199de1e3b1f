"""The ``temper`` command.

``app`` declares the commands; begin there. ``naming`` finds the artifact that a name means;
``step_lookup`` and ``project`` find the present code of its step. ``differences``, ``explanation``
and ``rows`` compute answers, and ``printing`` prints them. ``reports`` selects what ``temper
report`` and ``ui`` show. ``recipes`` runs the shipped experiments, ``start`` makes projects,
``tune`` starts a study. ``mcp_server`` gives the answers of ``--json`` to agents. ``maintenance``
holds the commands that change a store.

Uses every package. Commands of other packages may use ``naming``; nothing else uses this package.
"""

from pipeline.cli.app import app, main

__all__ = ["app", "main"]
