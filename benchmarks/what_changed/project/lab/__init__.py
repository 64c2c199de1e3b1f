"""A small experiment: rows become tokens, tokens train weights, weights get a score."""
