"""What a chat template's program does, found without running it.

One module, ``flow``: whether the contents of messages flow only into the text.

Uses nothing.
"""
