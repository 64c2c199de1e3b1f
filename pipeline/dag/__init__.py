"""The author's side of a DAG: values that describe what to make. Nothing here runs a step.

``step`` holds the decorator and the nodes that it makes; begin there. ``artifact`` defines what
flows along an edge, and checks what annotations tell of it; ``conversions`` finds the fields that a
config converts. ``inputs`` is what comes in from outside (``adopt`` copies it in);
``input_folders`` names files that lie beside such inputs. ``resources`` are what a step requests of
a machine, ``grid`` makes many configs from one. The key of a step is built from ``canonical``, the
encoding of argument values, ``value_types``, the names of their classes, and ``files`` and
``digests``, the BLAKE3 of files. ``settings`` lists the settings in a recipe.

Uses ``code``.
"""
