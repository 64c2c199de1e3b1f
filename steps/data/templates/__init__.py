"""What a chat template does with the messages.

``programs`` reads a template. ``flow`` finds without running it whether contents flow only into the
text; ``arguments`` how it takes the arguments of tool calls.

Uses nothing.
"""
