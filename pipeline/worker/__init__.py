"""The code that a launcher starts: it runs one attempt of one step.

``attempt`` is the entry point, ``python -m pipeline.worker.attempt SPEC``; begin there. ``calling``
calls the step function, ``process_cleanup`` closes the files that it left open, ``content`` checks
the files of its inputs and describes the files that it wrote. ``stopping`` handles requests to
stop, ``progress`` writes progress, ``resource_usage`` measures resources, ``memory`` keeps freed
memory, ``failure`` describes exceptions. A step on several devices runs ``torchrun`` on each node
and ``rank`` in each process. ``warm`` is the parent process that forks workers for steps that
import the same libraries, which the package ``libraries`` imports and hides.

Uses ``estimate``, ``plan``, ``wire``, ``observed``, ``store`` and what lies below them; never
``launchers``.
"""
