"""Environments by name, for those who choose one in a config: an experiment hands them to ``main``.

Whatever file of this folder defines an environment, it is known (:mod:`steps.shared.named`).
"""

from collections.abc import Mapping

from steps import environments
from steps.environments.environment import Environment
from steps.shared.named import members_of

ENVIRONMENTS: Mapping[str, type] = members_of(Environment, environments)
