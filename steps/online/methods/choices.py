"""Methods by name, for configs; an experiment passes them to ``main``."""

from collections.abc import Mapping

from steps.online.methods.distill import Distill
from steps.online.methods.method import Method
from steps.online.methods.online_dpo import OnlineDpo
from steps.online.methods.policy_gradient import PolicyGradient
from steps.online.methods.raft import Raft

METHODS: Mapping[str, type[Method]] = {
    method.name: method for method in (PolicyGradient, Distill, OnlineDpo, Raft)
}
