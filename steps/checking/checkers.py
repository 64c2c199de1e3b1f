"""Checkers by name, for those who choose one in a config: an experiment hands them to ``main``.

Whatever file of this folder defines a checker, it is known (:mod:`steps.shared.named`). Steps do
not come through here: they are given a checker, and so depend on the code of that one only.
"""

from collections.abc import Mapping

from steps import checking
from steps.checking.verdicts import Checker
from steps.shared.named import members_of

CHECKERS: Mapping[str, type] = members_of(Checker, checking)
