"""What a step was seen to use while it ran, where no key says so.

``observation`` is the audit hook of a worker; begin there. ``marks`` says which functions ran,
``snapshot`` serves project modules from the bytes that were hashed. ``discovery`` turns what was
seen into the discovered dependencies of an artifact, and tells a plan what these are now.

Uses ``store`` and what lies below it.
"""
