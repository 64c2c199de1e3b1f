"""Where a step's workers run: one module per engine, imported when a configuration names it.

:mod:`~pipeline.launchers.protocol` says what a launcher is, :mod:`~pipeline.launchers.jobs` what
is common to engines whose jobs outlive the driver that submitted them.
"""
