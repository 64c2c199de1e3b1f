"""All environments by name, for experiments that let a config choose one.

Every environment that a file of this folder defines is among them (:mod:`steps.shared.named`).
"""

from collections.abc import Mapping

from steps import environments
from steps.environments.environment import Environment
from steps.shared.named import members_of

ENVIRONMENTS: Mapping[str, type] = members_of(Environment, environments)
