"""The step of ``launchers.py``: it records when it began."""

import time

from pipeline import Output, step


@step(version="1")
def say_when(out: Output, number: int) -> dict:
    """Return the time at which the step began, and its number."""
    began = time.time()
    (out.path / "number.txt").write_text(str(number))
    return {"began": began}
