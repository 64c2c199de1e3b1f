"""What a program shows of an exception that nobody has caught: of a message, one line.

Importing ``pipeline`` puts :func:`_show` in the place of Python's own ``sys.excepthook``; a hook of
somebody else's stays. Three kinds of exception are shown otherwise than by a traceback:

- a message (:mod:`pipeline.foreseen`), with the line of the caller's file;
- Ctrl-C while Temper was at work, its imports included;
- a pipe that its reader has closed, as in ``… | head``: nothing is shown.

They stay exceptions: whoever catches one, a debugger or a test, sees all of it. With
``TEMPER_TRACEBACK=1`` Python shows every one of them itself.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
from types import TracebackType

# all that is needed, before anything else: after a Ctrl-C, nothing can be imported any more
from pipeline.foreseen import frames_of, is_shipped, message_of
from pipeline.redaction import shown
from pipeline.text import visible

STOPPED = "stopped; run the same command again to go on"
PLAIN = "TEMPER_TRACEBACK"


def install() -> None:
    """Show what is uncaught from now on as this module says, unless somebody else does."""
    if sys.excepthook is sys.__excepthook__ and not os.environ.get(PLAIN):
        sys.excepthook = _show
        atexit.register(_flush)


def shorten_in_notebooks(error: KeyboardInterrupt) -> None:
    """Let IPython show one line of an interrupt, and not where it met us."""
    error._render_traceback_ = lambda: [STOPPED]  # type: ignore[attr-defined]


def _show(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    lines = _lines(error)
    if lines is None:
        sys.__excepthook__(kind, error, place)
        return
    for line in lines:
        print(line, file=sys.stderr)


def _lines(error: BaseException) -> list[str] | None:
    """What to show; ``None`` for what is Python's to show."""
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
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    lines = [n for frame, n in frames_of(error) if frame.f_code.co_filename == main]
    return f" ({os.path.relpath(main)}, line {lines[-1]})" if lines and main else ""


def _end_at_once_on_ctrl_c() -> None:
    """Let a second Ctrl-C, while the interpreter ends, end it without a word."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _flush() -> None:
    """Write what is left to standard output; where nobody reads it any more, drop it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass  # there is none, or it is closed
