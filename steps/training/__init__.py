"""Training: from a model folder and scored examples to another model folder and its log.

Begin with ``recipes``, how each family of losses is trained, then ``policy`` (a model folder is
opened, made ready and saved), ``run`` and ``loop`` (the optimiser steps, written once for every
loss). The ``objectives`` are what a run minimises; a ``trainer`` does a step, on one device or, in
``sharded_trainer``, on several; ``optimizer`` updates the weights, and ``schedule`` says what
follows from a step's number alone. ``checkpoints`` keep a run alive, ``held_out`` says which step
was best, ``metrics`` is the log and ``usage`` what a watcher sees.
``config`` is importable without torch.

Uses ``steps.scoring``, ``steps.models`` and ``steps.losses``, and of ``steps.data`` its JSON lines.
"""
