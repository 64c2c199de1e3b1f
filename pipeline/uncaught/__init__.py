"""Shows uncaught exceptions: a message for users and Ctrl-C are one line.

``excepthook`` decides what is shown. It needs other modules, so until these are imported ``early``
shows Ctrl-C and files that hide a module; it also opens the streams that a program was started
without.

Uses ``foreseen``, ``redaction`` and ``text``; ``pipeline`` installs both hooks when it is imported.
"""
