"""Estimates the cost of a plan with the launchers of a configuration."""

from pipeline.estimate.estimates import Estimates, Estimator
from pipeline.launchers import devices
from pipeline.launchers.config import LauncherConfig
from pipeline.launchers.placement import requests
from pipeline.plan.planning import Plan
from pipeline.store.catalog import Catalog


def estimates_of(
    plan: Plan, catalog: Catalog, launcher: LauncherConfig | None = None, jobs: int = 1
) -> Estimates:
    """The estimated cost of every step of a plan that will run.

    Raises:
        TemperError: the resources that steps request are invalid or contradictory.
    """
    if plan.is_complete:
        return Estimates({})
    config = launcher or LauncherConfig()
    asked = requests(plan.roots.values(), config.requests())
    is_here = config.use[:1] == ["local"]
    return Estimator(catalog, asked, jobs, devices.cards, is_here).estimate(plan)
