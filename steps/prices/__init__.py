"""Estimates of the time, memory and disk space that Temper's steps need.

``model_sizes`` and ``row_sizes`` give the sizes of models and rows, before and after they exist.
``speed`` converts arithmetic, memory traffic and calls to seconds on given hardware. The estimators
combine these: ``of_models`` for steps that write a model folder without training, ``of_rows`` for
steps that read, choose and tokenise rows, ``of_training`` for steps that train or score,
``of_generation`` for steps that generate, ``of_online`` for training that samples. Begin with
``of_training``.

Steps name their estimator as a string and do not import it, so estimators are in no key. They
import neither torch nor transformers. Uses configs of the libraries below, and the core's
``price``.
"""
