"""Settings of experiments: where configs come from, what each setting means, and corrections.

``shipped`` finds the experiments and configs that come with Temper; begin there. ``groups``
provides config groups for experiments that have no YAML of their own. ``schemas`` registers an
experiment's dataclass with Hydra. ``setting_docs`` reads the meaning of each setting from the
docstrings of config dataclasses, and ``help_page`` prints it for ``--help``. ``near_misses`` turns
Hydra's errors into one sentence with the setting that was probably meant; ``called`` adds where it
stands in a recipe's file, and ``own_config`` where in the experiment's ``conf``. ``yaml_files``
reads both. ``demo_rows`` keeps the demo's rows apart from the user's.

Uses Hydra, ``text``, ``redaction`` and ``errors``; ``experiment`` and ``cli`` use this room.
"""
