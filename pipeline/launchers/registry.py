"""Creates the launchers that a configuration names; imports only their modules."""

from collections.abc import Callable

from pipeline.base.errors import TemperError
from pipeline.launchers.config import LauncherConfig
from pipeline.store.layout import Store
from pipeline.wire.launcher import Launcher
from pipeline.wire.lifeline import Lifeline

KINDS = ("local", "slurm", "ray")


def launcher_opener(
    config: LauncherConfig, store: Store, lifeline: Lifeline, jobs: int, run: str
) -> Callable[[str], Launcher]:
    """A function that opens a launcher by its kind.

    Args:
        jobs: how many steps may run at once on this machine.
        run: the name of this run, for records of jobs.
    """

    def open_launcher(kind: str) -> Launcher:
        match kind:
            case "local":
                from pipeline.launchers.local import LocalLauncher

                return LocalLauncher(lifeline, jobs, config.local)
            case "slurm":
                from pipeline.launchers.jobs import JobLauncher
                from pipeline.launchers.slurm import Slurm

                return JobLauncher(Slurm(config.slurm), store, run)
            case "ray":
                from pipeline.launchers.jobs import JobLauncher
                from pipeline.launchers.ray_jobs import Ray

                return JobLauncher(Ray(config.ray), store, run)
        raise TemperError(f"launcher.use={kind}: there is no such launcher; use {', '.join(KINDS)}")

    return open_launcher
