"""Launchers: where a step's workers run. There is one module for each engine, imported on demand.

``local`` starts processes of this machine; ``slurm``, ``ray_jobs`` and ``ray_nodes`` start jobs.
``jobs`` is the common part of engines whose jobs outlive the driver. Begin with the protocol,
:mod:`pipeline.wire.launcher`, then ``local``. ``config`` is the config group, ``registry`` creates
the configured launchers, ``placement`` assigns steps to launchers. ``devices`` assigns CUDA devices
to workers, ``warm_parent`` orders workers from the parent process that forks them, ``environment``
holds the environment of every worker, ``driver_end`` ends them in order.

Uses ``wire``, ``store``, ``dag``; never ``worker``.
"""
