"""Between steps and libraries: what several step files would otherwise repeat.

``load`` reads sources into splits of rows, ``tokenize`` turns those into splits of tokens; begin
with ``load``. ``held_out_rows`` and ``workplace_of`` translate what the core hands to a training
step into what the training library takes.

Uses ``pipeline`` and the libraries.
"""
