"""What is kept: everything under the root URL of a store, on a local disk or in a bucket.

``layout`` is the map of a store and the commit of an artifact; begin there. ``manifest`` is the
JSON object whose creation is the commit, ``catalog`` finds manifests, ``lease`` says who makes an
artifact now and when somebody else may. ``staging`` copies scratch, ``accepted``, ``runs``,
``activity`` and ``logs`` read what drivers and people left, ``kinds`` names the kind of an
artifact, ``latest`` finds results by their names. ``objects`` is the little that a store asks of a
file system. ``stored`` checks every value that comes out of a store: nothing read from a store is
believed.

Uses ``dag``.
"""
