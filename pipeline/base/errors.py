"""The exception whose message is written for the user at the terminal.

For problems that the core foresees (a bad value, a missing file, an unwritable store) it raises
:class:`TemperError` with one line that says what is wrong and what to do. Entry points print that
line and exit with a status other than 0. The libraries below ``steps/``, which do not know this
class, raise Python's own exceptions: :mod:`pipeline.uncaught.user_errors` decides which of those
are messages. Any other exception is a bug and keeps its traceback.
"""


class TemperError(Exception):
    """A foreseen problem. The message names the step, file or field and says what to do.

    Attributes:
        status: the exit status of a command that ends with it.
    """

    status = 1

    def _render_traceback_(self) -> list[str]:
        """Shown by IPython in place of a traceback."""
        return [f"error: {' '.join(str(self).split())}"]


class Stopped(KeyboardInterrupt):
    """The run was asked to end by SIGTERM or SIGHUP, its argument; handled like Ctrl-C."""


def text_of(error: BaseException) -> str:
    """What an exception says; nothing if its own code fails to say it."""
    try:
        return str(error)
    except Exception:
        return ""
