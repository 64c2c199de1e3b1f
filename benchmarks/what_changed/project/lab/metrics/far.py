"""The share of rows whose predicted length is not close."""

from lab.metrics import close


def measure(weights: list[float], tokens: list[list[int]], threshold: float) -> float:
    return 1 - close.measure(weights, tokens, threshold)
