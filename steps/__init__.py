"""The steps that ship with Temper: one file a step, and the libraries that do their work.

A step file shows a step's inputs, outputs and its few lines of work: read ``train_dpo`` first.
``kinds`` defines the kinds of artifacts that steps pass to each other, ``views`` how reports show
them, and ``sources`` where rows and models come from. ``train_on_pairs`` composes steps.

A preference row passes through the rooms in this order: ``data`` (files become rows, rows become
tokens), ``scoring`` (log-probabilities of responses), ``training`` (with ``losses`` and
``models``), ``generation``, ``evaluation``, ``export``. ``reward_models`` trains reward models with
the same engine. ``online`` trains a policy on completions that it samples and that ``checking``
judges. ``jax_backend`` scores and trains in JAX. These libraries do not import ``pipeline``;
``glue`` joins them to steps. ``prices`` estimates the time and memory of steps, ``serving`` has the
commands that use a trained model, and every room may use ``shared``.
"""
