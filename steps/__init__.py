"""The steps that ship with Temper: one file a step, and the libraries that do their work.

A step file shows a step's inputs, outputs and its few lines of work: read ``train_dpo`` first.
``kinds`` defines the kinds of artifacts that steps pass to each other, ``views`` how reports show
them, ``sources`` where rows and models come from, and ``segments`` how online training is cut into
steps. ``train_on_pairs`` composes steps.

A preference row passes through the packages in this order: ``data`` (files become rows, rows become
tokens), ``scoring`` (how likely a model finds a response), ``distillation`` (a teacher's
distribution there), ``training`` (with ``losses`` and ``models``), ``generation``, ``evaluation``,
``benchmarks``, ``export``. ``reward_models`` are trained on the same engine, ``online`` trains on
what a policy draws, ``checking`` judges and ``environments`` reply in the middle of it,
``comparing`` judges two models' answers side by side; ``jax_backend`` scores and trains in JAX,
``functional_backend`` trains by pure functions of torch, ``tinker_backend`` on a server, and
``primitives`` are for loops of your own. ``core_adapters`` joins steps to these libraries, which
know nothing of ``pipeline``; ``step_needs`` says beforehand what steps will take, ``serving`` has
the commands that use a finished model, and ``shared`` is what every package may use.
"""
