"""The ``temper`` command: what one asks of a store and does to it, one module each, over the core.

Nothing in the core depends on anything here.
"""

from pipeline.cli.app import app, main

__all__ = ["app", "main"]
