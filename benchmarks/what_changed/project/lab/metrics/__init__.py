"""Metrics, each a module that a setting names."""
