"""Decides which exceptions are messages for users, and shows those that nobody has caught.

A message is one line, as Ctrl-C is. ``user_errors`` decides which exceptions are messages.
``excepthook`` shows what nobody has caught. It needs other modules, so until these are imported
``early`` shows Ctrl-C; it also opens the streams that a program was started without.

Uses ``extras``, ``installed``, ``redaction`` and ``text``;
``pipeline`` installs both hooks when it is imported.
"""
