"""Shows uncaught exceptions; an error message for users is shown as one line.

Importing ``pipeline`` replaces Python's own ``sys.excepthook`` by :func:`_show`; another tool's
hook stays. Three kinds of exceptions are shown without a traceback:

- a message for users (:mod:`pipeline.uncaught.user_errors`), with the line of the caller's file;
- Ctrl-C while Temper was running, or during its imports;
- a pipe that its reader has closed, as in ``… | head``: nothing is shown.

They are still exceptions: a debugger or a test that catches one sees all of it. With
``TEMPER_TRACEBACK=1``, Python shows all of them itself.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
from types import TracebackType

# import these first: after a Ctrl-C no further imports are possible
from pipeline.base.errors import Stopped
from pipeline.base.redaction import shown
from pipeline.base.text import visible
from pipeline.uncaught import early
from pipeline.uncaught.early import PLAIN, STOPPED
from pipeline.uncaught.user_errors import frames_of, is_shipped, message_of


def install() -> None:
    """Install the hook for uncaught exceptions, unless another tool has installed one."""
    if sys.excepthook is not early.show and sys.excepthook is not sys.__excepthook__:
        return
    if os.environ.get(PLAIN):
        sys.excepthook = sys.__excepthook__
    else:
        sys.excepthook = _show
        atexit.register(_end)


def shorten_in_notebooks(error: KeyboardInterrupt) -> None:
    """Make IPython show one line for an interrupt instead of a traceback."""
    error._render_traceback_ = lambda: [STOPPED]  # type: ignore[attr-defined]


def _show(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    lines = _lines(error)
    if lines is None:
        sys.__excepthook__(kind, error, place)
        return
    for line in lines:
        print(line, file=sys.stderr)
    if isinstance(error, Stopped) and error.args:
        _stopped_by.append(error.args[0])


def _lines(error: BaseException) -> list[str] | None:
    """The lines to show; ``None`` if Python should show the exception itself."""
    if isinstance(error, KeyboardInterrupt):
        if not any(is_shipped(frame) for frame, _ in frames_of(error)):
            return None
        _end_at_once_on_ctrl_c()
        return [STOPPED]
    if isinstance(error, BrokenPipeError) and any(is_shipped(f) for f, _ in frames_of(error)):
        _flush()
        return []
    message = message_of(error)
    if message is None:
        return None
    return [f"error: {visible(shown(message))}{_caller(error)}"]


def _caller(error: BaseException) -> str:
    """The line of the script that called Temper, in brackets."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    if os.path.dirname(main) == os.path.dirname(sys.executable):
        return ""  # the temper command itself
    lines = [n for frame, n in frames_of(error) if frame.f_code.co_filename == main]
    with contextlib.suppress(FileNotFoundError):  # the working folder may have been deleted
        main = os.path.relpath(main) if main else ""
    return f" ({main}, line {lines[-1]})" if lines and main else ""


def _end_at_once_on_ctrl_c() -> None:
    """Make a second Ctrl-C during the shutdown of the interpreter end the process silently."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


_stopped_by: list[int] = []
"""The signal that has stopped this program."""


def _end() -> None:
    """End by the signal that has stopped this program, as it would without Temper, so that whoever
    has started it can tell this from a failure. What was registered with `atexit` before Temper was
    imported does not run then, as without Temper."""
    _flush()
    for number in _stopped_by:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _flush() -> None:
    """Flush standard output; if nobody reads it any more, discard the rest."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass  # standard output does not exist or is closed
