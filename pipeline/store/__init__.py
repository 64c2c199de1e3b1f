"""The store: everything that Temper keeps, under one root URL on a local disk or in a bucket.

``layout`` is the map of a store and commits artifacts; begin there. ``manifest`` is the JSON object
whose creation is the commit, ``catalog`` finds manifests. ``lease`` records who makes an artifact
now, and decides when another driver may take over. ``scratch_snapshots`` copies scratch folders.
``runs``, ``activity`` and ``logs`` read what drivers have written. ``names`` finds artifacts by
name, ``kinds`` the kind of an artifact. ``wholes`` joins an artifact to those on which it rests.
``objects`` holds the few operations that a store needs of a file system, and ``network_timeouts``
decides when a store does not answer, and how long to wait. ``untrusted_input`` checks every value
that is read from a store: nothing in a store is trusted.

Uses ``dag``.
"""
