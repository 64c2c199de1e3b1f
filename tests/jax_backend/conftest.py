"""JAX in tests: on processors, of which there seem to be eight, compiled quickly rather than
well."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
