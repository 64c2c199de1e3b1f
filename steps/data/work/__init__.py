"""Work on many files by several processes, which goes on after a kill.

``workers`` spreads one piece of work over files; begin there. ``resume_point`` remembers which
chunks of rows are done.
"""
