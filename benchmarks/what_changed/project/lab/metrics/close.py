"""The share of rows whose predicted length is close."""


def measure(weights: list[float], tokens: list[list[int]], threshold: float) -> float:
    errors = [abs(sum(weights[token] for token in row) - len(row)) for row in tokens]
    return sum(error < threshold for error in errors) / len(errors) + sum(errors)
