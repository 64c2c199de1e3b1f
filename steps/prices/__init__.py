"""What the steps that ship with Temper will take: estimators, named by the steps as texts.

``model_sizes`` and ``row_sizes`` say how large models and rows are, before and after they exist;
``speed`` turns arithmetic, traffic and calls into seconds on some hardware. The estimators put
these together: ``of_models`` for steps that write a model folder without training, ``of_rows`` for
those that read and tokenise, ``of_training`` for those that learn or score, ``of_generation`` for
those that write. Begin with ``of_training``.

They are for whoever watches: no step imports them, so they are in no key. They import neither torch
nor transformers. Uses configs of the libraries below, and the core's ``price``.
"""
