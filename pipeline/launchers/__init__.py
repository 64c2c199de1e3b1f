"""Where a step's process runs: one module per engine."""
