"""Settings of experiments: where configs come from, what each setting means, and corrections.

``shipped`` finds the experiments and configs that come with Temper; begin there. ``groups``
provides config groups for experiments that have no YAML of their own. ``schemas`` registers an
experiment's dataclass with Hydra. ``setting_docs`` reads the meaning of each setting from the
docstrings of config dataclasses, and ``help_page`` prints it for ``--help``; ``field_types`` reads
their annotations. ``suggestions`` names the setting that was probably meant by one that does not
exist. ``yaml_files`` reads the files that users write. ``demo_rows`` keeps the demo's rows apart
from the user's.

Uses Hydra, ``text``, ``redaction`` and ``errors``; ``experiment`` and ``cli`` use this package.
"""
