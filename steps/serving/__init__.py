"""Commands for trained models: chat, serve, push.

``chatting`` talks with a model in the terminal, ``serve`` offers it over HTTP, ``push`` uploads it
to a Hub. Each is a command of ``temper``, by an entry point in ``temper.commands``. Begin with
``chatting``. ``named_models`` finds a model by its name, and the model from which its training
started. ``replies`` generates an answer piece by piece.

Uses ``pipeline`` and its command line, ``steps.generation``, ``steps.data``, ``steps.models``, and
the model card of ``steps.export``.
"""
