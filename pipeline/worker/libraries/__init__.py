"""The libraries that the parent of warm workers imports, and that its workers find.

``warm_imports`` chooses the libraries, imports them, and checks that the parent may still fork.
``hidden_packages`` hides them from a worker until its step imports them.

Uses ``observed``, ``code`` and nothing else of ``worker``.
"""
