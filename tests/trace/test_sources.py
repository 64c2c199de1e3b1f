"""Facts about source files are kept: the next process finds what this one has read."""

from pathlib import Path

import pytest

from pipeline.base import user_cache
from pipeline.trace import sources

CODE = b'''\
"""About it."""
from __future__ import annotations
from os import path
from .inner import RATE, scale as scaled
import numpy as np
LIMIT: int = 3
TABLE = {"a": [1, 2]}
class Made(dict):
    limit = np.inf
    def go(self, x: int = 2) -> int:
        return scaled(x) + getattr(self, "rate")
def train(by=RATE):
    return eval("by")
if LIMIT:
    print(globals())
'''


def test_what_was_read_is_found_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept form that cannot be restored would be read anew by every process, in silence."""
    monkeypatch.setenv(user_cache.FOLDER, str(tmp_path))
    user_cache._folder.cache_clear()
    sources._found.cache_clear()
    try:
        made = sources.parsed(CODE)
        found = sources.known(sources.digest_of(CODE))
    finally:
        user_cache._folder.cache_clear()
    assert found == made
