"""Where things lie that tests read."""

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
"""Modules that several tests import, and steps that workers import."""
TESTS = SUPPORT.parent
GOLDEN = TESTS / "golden"
REPOSITORY = TESTS.parent
SHARED_ROWS = REPOSITORY.parent / "shared" / "data" / "ultrafeedback_500.jsonl"
"""Rows of UltraFeedback, which not every machine has."""
