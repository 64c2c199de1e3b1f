"""What every package of the core may use: errors, texts, references to code, and a user's cache.

- ``errors``: the exceptions that are messages for users.
- ``text`` and ``html`` format text; ``redaction`` keeps secrets out of it.
- ``annotations``: which values fit a type annotation.
- ``references`` to definitions that a worker imports; ``cells`` writes the definitions of a
  notebook to a module.
- ``installed`` tells libraries from a project's code; ``extras``: optional packages.
- ``processes``: whether a process exists; ``repeating``: a thread that repeats a call.
- ``user_cache``: a folder of small results that any process of a user may keep or lose.
"""
