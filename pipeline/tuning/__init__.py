"""Tuning: which settings make a number of the results best, in trials that are ordinary runs.

A trial is a config of the experiment; its steps are the experiment's own, with their own keys. So
what trials share is made once, a trial that exists costs nothing, and there is no state besides the
store: a study that was killed and is started again asks for the same trials and finds what they
came to. What is cached changes what a study costs, never what it finds.

``driver`` has ``tune`` and runs the trials; begin there. ``space`` says which settings vary, in
Hydra's grammar or Optuna's distributions. ``search`` says which trials come next (Optuna) and which
go on (successive halving): it runs nothing. ``summary`` shows how the trials went.

Uses ``running`` and what lies below it.
"""
