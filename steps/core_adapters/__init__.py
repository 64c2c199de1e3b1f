"""Code that joins steps to libraries, which several step files would otherwise repeat.

Begin with ``load``, which reads sources into splits of rows. ``tokenize`` turns splits of rows into
splits of tokens, ``kept_rows`` leaves out rows. ``own_tokens`` checks that a model knows the tokens
that it is to read, and hands their chat template on. ``held_out_rows`` and ``workplace_of`` convert
the arguments of a training step to the arguments of the training library. ``copied`` copies a
folder for a library that writes beside what it reads.

Uses ``pipeline`` and the libraries.
"""
