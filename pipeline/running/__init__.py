"""One invocation: plan a DAG, run the missing steps, record the outcome.

``session`` is ``run``; begin there. ``run_request`` checks what it is asked for, ``invocation``
holds the plan and what is recorded, ``rounds`` runs the steps that the plan lacks. ``sweep`` makes
one such request of the jobs of ``-m``. ``luigi_engine``
schedules steps and is the only module that imports Luigi. ``attempts`` runs one step: it looks into
the store, holds the lease, starts attempts and commits. ``record`` writes the record of the run,
``forecast`` estimates its cost beforehand, ``budget`` holds the time that it may take.

Uses every package but ``cli`` and ``experiment``.
"""
