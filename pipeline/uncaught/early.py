"""What a program does first: three open streams, and one line instead of a traceback for Ctrl-C in
its first moments.

``pipeline`` imports this module before any other, so that this happens early; therefore this module
imports next to nothing. :mod:`pipeline.uncaught.excepthook` replaces the hook.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

PLAIN = "TEMPER_TRACEBACK"
"""The environment variable with which Python shows all exceptions itself."""
STOPPED = "stopped; run the same command again to go on"


def install() -> None:
    """Install the hook for uncaught exceptions, unless another tool has installed one, and open the
    streams that the program was started without."""
    _open_streams()
    if sys.excepthook is sys.__excepthook__ and not os.environ.get(PLAIN):
        sys.excepthook = show


def show(kind: type[BaseException], error: BaseException, place: "TracebackType | None") -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(STOPPED, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, place)


def _open_streams() -> None:
    """Give the program's input and outputs to ``/dev/null`` where they are closed, as after ``<&-``
    or in some daemons. Otherwise a pipe to a worker would have the number of its input."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number
