"""First in the ``PYTHONPATH`` of processes that a step starts; see ``sitecustomize``."""
