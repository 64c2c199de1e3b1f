"""The folder that is first in the ``PYTHONPATH`` of processes that a step starts; see
``sitecustomize``."""
