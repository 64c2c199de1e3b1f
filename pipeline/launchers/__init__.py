"""Where a step's workers run: one module per engine, imported when a configuration names it.

``local`` starts processes of this machine, ``slurm``, ``ray_jobs`` and ``ray_nodes`` start jobs;
``jobs`` is what engines have in common whose jobs outlive the driver. Begin with the protocol,
:mod:`pipeline.wire.launcher`, then ``local``. ``config`` is the config group, ``registry`` makes
the launchers that a configuration names, ``placement`` says which step goes where. ``devices``
hands out CUDA devices, ``warm_parent`` orders workers from the parent that forks them,
``environment`` is what every worker finds, ``orderly`` ends processes in order.

Uses ``wire``, ``store``, ``dag``; never ``worker``.
"""
