"""How a text becomes words."""

import os
import re
from pathlib import Path

from lab.spelling import folded

LONGEST = 12
PATTERN = re.compile(r"[a-z]+")


def words_of(text: str, least: int = 2) -> list[str]:
    stop = set(Path("data/stopwords.txt").read_text().split())
    found = PATTERN.findall(folded(text))
    return [word[:LONGEST] for word in found if len(word) >= least and word not in stop]


def shown(text: str) -> str:
    """For people who debug; no step calls it."""
    return text.upper()


def case_of_vocabulary() -> str:
    return os.environ.get("LAB_CASE", "lower")
