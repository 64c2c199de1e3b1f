"""The step of ``launchers.py``: says when it began."""

import time

from pipeline import Output, step


@step(version="1")
def say_when(out: Output, number: int) -> dict:
    """Nothing but its own beginning and its number."""
    began = time.time()
    (out.path / "number.txt").write_text(str(number))
    return {"began": began}
