"""Commands for trained models: chat, serve, push.

``chatting`` talks with it in the terminal, ``serve`` puts it behind an HTTP interface,
``engine_process`` lets that draw completions for runs, ``push`` uploads it to a Hub; each is a
command of ``temper``, through the entry points ``temper.commands``. Begin with ``chatting``.
``named_models`` finds the model that a person names, and the one that its training began from.
``replies`` lets a model answer, piece by piece.
``openai_app`` is the HTTP interface of ``serve``, for the requests of ``openai_requests``;
``served_answers`` writes one answer after the other; ``engine_app`` is for runs.

Uses ``pipeline`` and its command line, ``steps.generation``, ``steps.data``, ``steps.models``, and
the model card of ``steps.export``.
"""
