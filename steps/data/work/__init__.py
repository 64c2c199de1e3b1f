"""Process many files in several processes, and resume after a kill.

Begin with ``workers``, which runs a job on many files. ``resume_point`` records which chunks of
rows are finished.
"""
