"""Whether a step fits devices that need not be there: ``fit`` compiles its programs for what
``targets`` describes to the compiler.
"""
