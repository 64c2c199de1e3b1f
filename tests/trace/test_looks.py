"""What looks neutral, so that a plan suggests to accept it, and what must not."""

import pytest

from pipeline.trace.counted import Loaded, digests_and_looks, total_look
from pipeline.trace.source_parts import read_source

STEPS = '''
"""Steps."""
import logging
import numpy as np
from helpers import rate, scale
LOG = logging.getLogger(__name__)
LIMIT = 3

def train(out, values):
    """Train."""
    total = 0
    for value in values:
        total += rate(value) - scale(value) + LIMIT
    LOG.info("done")
    if total < 0:
        raise ValueError("too small")
    return np.mean([total, *(value for value in values)])
'''
HELPERS = """
def rate(n):
    return n * 2
def scale(n):
    return n + 2
"""


def look(steps: str, helpers: str = HELPERS) -> int:
    """How the code looks, of which all functions ran."""
    sources = {"steps": read_source(steps.encode()), "helpers": read_source(helpers.encode())}
    loaded = {n: Loaded(s, False, frozenset(s.functions)) for n, s in sources.items()}
    return total_look(digests_and_looks(loaded, lambda n: n in sources)[1])


def edited(*edits: tuple[str, str]) -> tuple[str, str]:
    steps, helpers = STEPS, HELPERS
    for old, new in edits:
        assert old in steps + helpers
        steps, helpers = steps.replace(old, new), helpers.replace(old, new)
    return steps, helpers


@pytest.mark.parametrize(
    "edits",
    [
        [('"""Train."""', '"""Trains."""')],
        [('"""Train."""', "")],
        [("out, values", "out, values: list[int]")],
        [("total", "result")],
        [("for value in values:\n        total += rate(value) - scale(value)",
          "for v in values:\n        total += rate(v) - scale(v)")],
        [("rate", "speed")],
        [("LIMIT", "MOST")],
        [("from helpers import rate, scale", "import helpers"),
         ("rate(value)", "helpers.rate(value)"), (" scale(value)", " helpers.scale(value)")],
        [("import logging\nimport numpy as np", "import numpy as np\nimport logging")],
        [("import numpy as np", "from numpy import mean"), ("np.mean", "mean")],
        [('LOG.info("done")', 'LOG.info("finished")')],
        [('    LOG.info("done")\n', "")],
        [('"too small"', 'f"{total} is too small"')],
        [("LIMIT = 3", "LIMIT: int = 3")],
    ],
)  # fmt: skip
def test_names_docs_hints_and_messages_have_no_look(edits: list[tuple[str, str]]) -> None:
    assert look(*edited(*edits)) == look(STEPS)


def test_a_moved_function_looks_the_same() -> None:
    scale = "def scale(n):\n    return n + 2\n"
    steps = STEPS.replace("import rate, scale", "import rate") + scale
    assert look(steps, HELPERS.replace(scale, "")) == look(STEPS)


@pytest.mark.parametrize(
    "edits",
    [
        [("n * 2", "n * 3")],
        [("LIMIT = 3", "LIMIT = 4")],
        [("np.mean", "np.sum")],
        [("rate(value) - scale(value)", "scale(value) - rate(value)")],
        [("import rate, scale", "import rate as scale, scale as rate")],
        [("total < 0", "total <= 0")],
        [("rate(value)", "rate(total)")],
        [('LOG.info("done")', "LOG.info(values.pop())")],
        [("[total, *", "[*")],
    ],
)  # fmt: skip
def test_another_computation_has_another_look(edits: list[tuple[str, str]]) -> None:
    assert look(*edited(*edits)) != look(STEPS)
