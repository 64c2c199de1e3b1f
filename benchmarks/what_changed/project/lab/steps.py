"""The four steps. Each is a pure function of its arguments and of the files that it reads."""

import importlib
import json

from lab import journal
from lab.optimise import OPTIMISERS
from lab.text import case_of_vocabulary, words_of


def load(rows: str, limit: int) -> list[str]:
    journal.ran("load")
    return [json.loads(line)["text"] for line in rows.splitlines()[:limit]]


def tokenize(texts: list[str], vocabulary: str) -> list[list[int]]:
    journal.ran("tokenize")
    known = vocabulary.upper() if case_of_vocabulary() == "upper" else vocabulary
    ids = {word: number for number, word in enumerate(known.split())}
    return [[ids[word] for word in words_of(text) if word in ids] for text in texts]


def train(tokens: list[list[int]], rate: float, epochs: int, optimiser: str) -> list[float]:
    """Weights of ids, by least squares to the length of a row."""
    journal.ran("train")
    weights: dict[int, float] = {}
    steps = {}
    for _ in range(epochs):
        for row in tokens:
            error = sum(weights.get(token, 0.0) for token in row) - len(row)
            for token in row:
                step = steps.setdefault(token, OPTIMISERS[optimiser](rate))
                weights[token] = step.update(weights.get(token, 0.0), error / len(row))
    return [weights.get(token, 0.0) for token in range(64)]


def evaluate(weights: list[float], tokens: list[list[int]], metric: str, threshold: float) -> dict:
    journal.ran("evaluate")
    measure = importlib.import_module(f"lab.metrics.{metric}").measure
    return {"score": measure(weights, tokens, threshold)}
