"""What a plan will cost: time, memory and disk of the steps that are to run, before they do.

``estimator`` is what a step may declare to be priced by, and what an estimator is told; begin
there. ``machine`` knows the hardware here, ``experience`` compares what earlier attempts took with
what was foreseen of them, ``pricing`` puts a price on every step of a plan, and ``remaining`` says
how long a run still takes.

An estimate is for whoever watches: it is part of no key, and where nothing is known there is none.
Uses ``plan``, ``store`` and what lies below them.
"""
