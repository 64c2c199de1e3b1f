"""Shows uncaught exceptions: a message for users and Ctrl-C are one line.

``excepthook`` decides what is shown. It needs other modules, so ``early`` shows Ctrl-C until these
are imported, and opens the streams that a program was started without.

Uses ``foreseen``, ``redaction`` and ``text``; ``pipeline`` installs both hooks when it is imported.
"""
