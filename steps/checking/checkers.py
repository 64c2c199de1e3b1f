"""Checkers by name, for configs; an experiment passes them to ``main``.

The registry finds the checkers in all files of this folder (:mod:`steps.shared.named`). Steps do
not import the registry. They get one checker as an argument, so they depend on the code of that
checker only.
"""

from collections.abc import Mapping

from steps import checking
from steps.checking.verdicts import Checker
from steps.shared.named import members_of

CHECKERS: Mapping[str, type] = members_of(Checker, checking)
