"""Judges of pairs by name, for configs; an experiment passes them to ``main``.

The registry finds them in all files of this folder, as that of checkers does.
"""

from collections.abc import Mapping

from steps import comparing
from steps.checking.compared import PairJudge
from steps.shared.named import members_of

PAIR_JUDGES: Mapping[str, type] = members_of(PairJudge, comparing)
