"""The author's side of a DAG: values that describe what is to be made. Nothing here runs a step.

``step`` is the decorator and the node that it makes; begin there. ``artifact`` says what flows
along an edge, ``inputs`` what comes in from outside (``adopt`` copies it in), ``resources`` what a
step asks of a machine, ``grid`` makes many configs from one. The key of a step rests on
``canonical``, the one encoding of argument values, on ``value_types``, which names their classes,
and on ``files`` and ``digests``, the BLAKE3 of files. ``settings`` reads a recipe as its author
wrote it.

Uses ``code``.
"""
