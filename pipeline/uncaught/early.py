"""One line instead of a traceback for Ctrl-C in the first moments of a program.

``pipeline`` imports this module before any other, so that the hook is in place early; therefore
this module imports next to nothing. :mod:`pipeline.uncaught.excepthook` replaces the hook.
"""

import sys
from types import TracebackType

STOPPED = "stopped; run the same command again to go on"


def install() -> None:
    """Install the hook for uncaught exceptions, unless another tool has installed one."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show


def show(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(STOPPED, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, place)
