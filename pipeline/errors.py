"""The one exception whose message is meant for the person at the terminal.

Everything Temper can foresee going wrong (a bad value, a missing file, an unwritable store) is
raised as :class:`TemperError` with one line that says what is wrong and what to do. Entry points
print that line and exit with a status other than 0; any other exception is a bug and keeps its
traceback.
"""


class TemperError(Exception):
    """A foreseen problem. The message names the step, file or field and says what to do."""


class Stopped(KeyboardInterrupt):
    """The run was asked to end by SIGTERM; handled like Ctrl-C."""
