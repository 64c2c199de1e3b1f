"""Read a top-level statement: its form (``pipeline.code.form``) and its traits.

One pass over the syntax tree writes the form. The reader keeps track of the enclosing scopes by the
rules of the language reference (section 4.2): names that a function, class, lambda or comprehension
binds are local to it; all others are globals of the module, or builtins.

Begin with ``read`` in ``statements``. The class that writes has a module for each kind of node,
each on top of the next: ``statements``, ``definitions``, ``expressions``, ``names``, ``writer``.
``scopes`` has local names, and ``syntax`` asks what a node is.

Uses ``form`` and ``bindings``.
"""
