"""What a chat template does with the messages.

``programs`` reads a template. ``flow`` finds without running it whether contents flow only into the
text; ``arguments`` how it takes tools and the arguments of their calls.

Uses nothing.
"""
