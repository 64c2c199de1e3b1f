"""Tuning: searches for the settings that optimise a metric, in trials that are ordinary runs.

Optuna chooses the settings of trials and which trials stop early. A trial is a config of the
experiment; its steps are the experiment's own, with their own keys. So steps that trials share run
once, and a trial that is cached costs nothing. There is no state besides the store: a study that
was killed and is started again asks for the same trials and finds their results. The cache changes
what a study costs, never what it finds.

``driver`` holds ``tune`` and runs the trials; begin there. ``goal`` defines the metric and the
options, and makes Optuna's study. ``space`` defines the settings that vary, in Hydra's grammar or
as Optuna's distributions. ``summary`` shows the results of trials.

Uses ``running`` and what lies below it.
"""
