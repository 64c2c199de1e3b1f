"""What changed? A benchmark of what tools run again after an edit; see ``README.md``."""
