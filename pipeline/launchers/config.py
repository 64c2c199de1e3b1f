"""The config group ``launcher``: which engines there are, and what steps ask for by default."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pipeline.dag.resources import Resources
from pipeline.errors import TemperError


@dataclass
class LocalConfig:
    """This machine.

    Args:
        gpus: how many of its CUDA devices steps may use; by default all.
        grace_seconds: how long a step that is told to stop has for its checkpoint.
        warm: import the libraries that steps of a run share once, and fork workers from there.
            Results are the same; a step of which that is in doubt gets a fresh interpreter.
    """

    gpus: int | None = None
    grace_seconds: float = 10.0
    warm: bool = True


@dataclass
class SlurmConfig:
    """A Slurm cluster whose commands work on this machine.

    Args:
        partition: where jobs go; by default where Slurm's own default is.
        folder: for job scripts and output; on a file system that all nodes share.
        python: the interpreter on the nodes; by default the path of this one.
        setup: lines of shell that run on the first node before the workers, ``module load …``.
        options: more options of ``sbatch``, as ``{qos: high, reservation: temper}``.
        poll_seconds: how often a waiting step asks Slurm for its job.
        account: what jobs are charged to; by default Slurm's own.
        grace_seconds: how long a job that is told to stop has for its checkpoint.
    """

    partition: str | None = None
    account: str | None = None
    folder: str = "~/.temper/slurm"
    python: str | None = None
    setup: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    grace_seconds: float = 60.0
    poll_seconds: float = 5.0


@dataclass
class RayConfig:
    """A Ray cluster.

    Args:
        address: of its dashboard, which takes jobs.
        working_dir: a folder of code that Ray copies to the nodes; by default they have the code
            at the same path as this machine.
        python: the interpreter on the nodes; by default the path of this one.
        env: environment variables for the workers.
        autoscales: machines are added on demand, so what is there now is not all that is offered.
        grace_seconds: how long a job that is told to stop has for its checkpoint.
        poll_seconds: how often a waiting step asks Ray for its job.
    """

    address: str = "http://127.0.0.1:8265"
    working_dir: str | None = None
    python: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    autoscales: bool = False
    grace_seconds: float = 60.0
    poll_seconds: float = 2.0


@dataclass
class LauncherConfig:
    """Where steps run.

    Args:
        use: engines in order of preference: a step goes to the first that has what it asks for.
        steps: what steps ask for, by step name, each a mapping with the fields of
            :class:`pipeline.dag.resources.Resources`; ``step(...).on(...)`` comes before it.
    """

    use: list[str] = field(default_factory=lambda: ["local"])
    steps: dict[str, Any] = field(default_factory=dict)
    local: LocalConfig = field(default_factory=LocalConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    def requests(self) -> dict[str, Resources]:
        """``steps``, read.

        Raises:
            TemperError: a field is not known, or a value not understood.
        """
        return {name: _read(name, asked) for name, asked in self.steps.items()}


def _read(step: str, asked: Any) -> Resources:
    known = [entry.name for entry in fields(Resources)]
    if isinstance(asked, Resources):
        return asked
    unknown = (
        [str(name) for name in asked if name not in known]
        if isinstance(asked, Mapping)
        else [asked]
    )
    if unknown:
        raise TemperError(f"launcher.steps.{step}: {unknown[0]} is none of {', '.join(known)}")
    try:
        return Resources(**asked)
    except TemperError as error:
        raise TemperError(f"launcher.steps.{step}: {error}") from error
