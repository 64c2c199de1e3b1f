"""Training: from a model folder and scored examples to another model folder and its log.

Begin with ``recipes``, one function for each family of losses. Then read ``policy`` (open, prepare
and save a model folder), ``run`` and ``loop`` (the optimiser steps, the same for every loss).
``objectives`` defines what a run minimises. A ``trainer`` executes a step on one device,
``sharded_trainer`` on several. ``optimizer`` updates the weights. ``schedule`` computes examples,
learning rate and noise from a step's number. ``checkpoints`` saves and restores runs, ``held_out``
finds the best step, ``metrics`` is the log, ``usage`` measures and traces steps. ``config`` is
importable without torch. The package ``beside`` has other weights beside the policy's: a reference
for losses that need its whole distribution, and a moving average.

Uses ``steps.scoring``, ``steps.models`` and ``steps.losses``, and of ``steps.data`` its JSON lines.
"""
