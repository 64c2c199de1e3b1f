"""Observes what a step uses while it runs and no key contains.

``observation`` collects what the processes of a step use; begin there. In each of them, ``hook`` is
the audit hook, ``path_filter`` say which paths count, ``callers`` find the code behind an event,
``file_fingerprints`` stand for a file's content. ``stdlib_patches`` notes what has no audit event,
``function_marks`` records which functions ran, ``native`` sees what native code and started
programs open. ``snapshot`` serves project modules from the bytes that were hashed, compiled by
``marked_code``. A Python that the step starts joins through ``started`` and ``joining``.
``discovery`` derives the discovered dependencies of an artifact from the observation, and tells a
plan whether they have changed since. ``scratch_dependencies`` does so for attempts that left
results in scratch. ``neutral`` tells changes of code that seem to change no result.

Uses ``store`` and what lies below it.
"""
