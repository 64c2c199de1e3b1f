"""The config group ``launcher``: the engines, and the resources that steps request by default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import exists
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.dag.resources import Resources, refuse_unknown


@dataclass
class LocalConfig:
    """This machine.

    Args:
        gpus: how many of its CUDA devices steps may use; by default all.
        grace_seconds: how long a step has for its checkpoint after it was asked to stop.
        warm: import libraries that steps need only once, and fork workers from there.
            Results are the same; in case of doubt a step gets a fresh interpreter.
        env: environment variables for the workers, besides those with which this program was
            started.
    """

    gpus: int | None = None
    grace_seconds: float = 10.0
    warm: bool = True
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class SlurmConfig:
    """A Slurm cluster whose commands work on this machine.

    Args:
        partition: the partition for jobs; by default ``SBATCH_PARTITION``, or Slurm's own default.
        folder: for job scripts and output; it must be on a file system that all nodes share.
        python: the interpreter on the nodes; by default the path of this one.
        setup: lines of shell that run on the first node before the workers, ``module load …``.
        options: further options of ``sbatch``, such as ``{qos: high, contiguous: true}``.
        poll_seconds: how often a waiting step asks Slurm for the state of its job.
        account: the account that jobs are charged to; by default ``SBATCH_ACCOUNT``, or Slurm's own
            default.
        env: environment variables for the workers, besides those with which this program was
            started. ``sbatch`` passes them on, unless its option ``export`` says otherwise.
        grace_seconds: how long a job has for its checkpoint after it was asked to stop.
    """

    partition: str | None = None
    account: str | None = None
    folder: str = "~/.temper/slurm"
    python: str | None = None
    setup: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    grace_seconds: float = 60.0
    poll_seconds: float = 5.0

    def __post_init__(self) -> None:
        if taken := [name for name in ("job-name", "output", "array") if name in self.options]:
            raise ValueError(
                f"options sets {taken[0]}, and every driver finds jobs and output by what Temper "
                "sets there; leave it out"
            )


@dataclass
class RayConfig:
    """A Ray cluster.

    Args:
        address: the address of its dashboard, which accepts jobs.
        working_dir: a folder of code that Ray copies to the nodes; by default the nodes have the
            code at the same path as this machine.
        python: the interpreter on the nodes; by default the path of this one.
        env: environment variables for the workers, which otherwise get those of the nodes.
        autoscales: whether the cluster adds machines on demand, so that steps may request more than
            there is now.
        grace_seconds: how long a job has for its checkpoint after it was asked to stop.
        poll_seconds: how often a waiting step asks Ray for the state of its job.
    """

    address: str = "http://127.0.0.1:8265"
    working_dir: str | None = None
    python: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    autoscales: bool = False
    grace_seconds: float = 60.0
    poll_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not self.address.startswith(("http://", "https://")):  # ray://HOST takes no jobs
            raise ValueError(
                f"address={self.address} is not that of a dashboard, as in http://HEAD:8265"
            )
        if self.working_dir and "://" not in self.working_dir and not exists(self.working_dir):
            raise ValueError(f"working_dir={self.working_dir} does not exist on this machine")


@dataclass
class LauncherConfig:
    """Where steps run.

    Args:
        use: engines in order of preference: a step runs on the first that has what it requests.
        steps: the resources that steps request, by step name; each is a mapping with fields of
            :class:`pipeline.dag.resources.Resources`. ``step(...).on(...)`` takes precedence.
    """

    use: list[str] = field(default_factory=lambda: ["local"])
    steps: dict[str, Any] = field(default_factory=dict)
    local: LocalConfig = field(default_factory=LocalConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    def __post_init__(self) -> None:
        if not self.use:
            raise ValueError("use names no engine; leave it out, or give use=[local]")

    def requests(self) -> dict[str, Resources]:
        """The requests in ``steps``, parsed.

        Raises:
            TemperError: a field is unknown, or a value is invalid.
        """
        return {name: _read(name, asked) for name, asked in self.steps.items()}


def _read(step: str, asked: Any) -> Resources:
    if isinstance(asked, Resources):
        return asked
    try:
        refuse_unknown(asked if isinstance(asked, Mapping) else [asked])
        return Resources(**asked)
    except TemperError as error:
        raise TemperError(f"launcher.steps.{step}: {error}") from error
