"""What an experiment can be told: where configs come from, what each setting means, and what a
person may have meant by one that does not exist.

``shipped`` finds the experiments and configs that come with Temper; begin there. ``groups`` gives
them to experiments that have no YAML of their own. ``explained`` reads what each setting means from
the docstrings of config dataclasses, and ``help_page`` prints that for ``--help``. ``near_misses``
turns Hydra's errors into one sentence with the setting that was probably meant.

Uses Hydra, ``text``, ``redaction`` and ``errors``; ``experiment`` and ``cli`` use it.
"""
