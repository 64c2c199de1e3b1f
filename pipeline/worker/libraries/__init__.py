"""The libraries that the parent of warm workers imports, and that its workers find.

``warm_imports`` chooses the libraries, imports them, and checks that the parent may still fork.
``certain_imports`` finds, in the source of steps, the libraries that they import in any case.
``hidden_packages`` hides them from a worker until its step imports them.

Uses ``observed``, ``trace`` and nothing else of ``worker``.
"""
