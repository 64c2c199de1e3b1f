"""A real Slurm cluster of two nodes on this machine, for tests and benchmarks.

It consists of ``munged``, ``slurmctld`` and two ``slurmd`` from Debian's ``slurm-wlm``, with
separate folders, ports and keys, so that it does not touch a cluster of the machine. Its GPUs are
null devices. There is no accounting, as on many clusters.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.daemons import ending_with_us, free_port

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
START_SECONDS = 180.0
NODES = ("temper1", "temper2")


@dataclass(frozen=True)
class SlurmCluster:
    """A running cluster.

    Attributes:
        environment: the environment variables for Slurm's commands.
    """

    folder: Path
    environment: Mapping[str, str]

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def why_not() -> str:
    """Why there can be no cluster here; empty if there can."""
    missing = [name for name in DAEMONS if _find(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (apt-get install slurm-wlm munge)"
    if os.getuid() != 0:
        return "slurmd must be started by root"
    try:
        with tempfile.TemporaryDirectory() as folder:
            _make_null_device(Path(folder) / "device")
    except OSError as error:
        return f"the nodes' GPUs would be device files, which cannot be made ({error})"
    return ""


@contextlib.contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Two nodes with two GPUs each, in the partitions ``low`` and ``high``; jobs of the second
    preempt those of the first."""
    folder = Path(tempfile.mkdtemp(prefix="temper-slurm-"))
    folder.chmod(0o755)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        _configure(folder)
        environment = {"SLURM_CONF": str(folder / "slurm.conf")}

        def start(*command: str) -> None:
            log = open(folder / f"{command[0]}-{len(processes)}.out", "wb")  # noqa: SIM115
            processes.append(
                subprocess.Popen(
                    ending_with_us([str(_find(command[0])), *command[1:]]),
                    env={**os.environ, **environment},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

        socket_path = folder / "munge.socket"
        start(
            *("munged", "--foreground", "--force", f"--socket={socket_path}"),
            *(f"--key-file={folder / 'munge.key'}", f"--pid-file={folder / 'munged.pid'}"),
            *(f"--log-file={folder / 'munged.log'}", f"--seed-file={folder / 'munge.seed'}"),
        )
        _wait(socket_path.exists, "munged", folder)
        start("slurmctld", "-D", "-i", "-f", str(folder / "slurm.conf"))
        for node in NODES:
            start("slurmd", "-D", "-N", node, "-f", str(folder / "slurm.conf"))
        cluster = SlurmCluster(folder, environment)
        _wait(lambda: _idle(cluster) == len(NODES), "slurm", folder)
        yield cluster
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path) -> None:
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    devices = folder / "devices"
    devices.mkdir()
    for node in NODES:
        for number in range(2):
            _make_null_device(devices / f"{node}-{number}")
    (folder / "gres.conf").write_text(
        "".join(
            f"NodeName={n} Name=gpu Type=Toy File={devices}/{n}-[0-1] Flags=nvidia_gpu_env\n"
            for n in NODES
        )
    )
    host, user = socket.gethostname(), getpass.getuser()
    ports = {node: free_port() for node in NODES}
    nodes = "".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[node]} CPUs=4 "
        "RealMemory=8000 Gres=gpu:Toy:2 State=UNKNOWN\n"
        for node in NODES
    )
    (folder / "slurm.conf").write_text(
        f"""ClusterName=temper
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser={user}
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,default_queue_depth=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
KillWait=20
InactiveLimit=0
SlurmdTimeout=120
MinJobAge=300
SlurmdParameters=config_overrides
{nodes}PartitionName=low Nodes=ALL Default=YES MaxTime=1:00:00 PriorityTier=1 GraceTime=15 State=UP
PartitionName=high Nodes=ALL MaxTime=2:00:00 PriorityTier=2 PreemptMode=OFF State=UP
"""
    )


def _make_null_device(path: Path) -> None:
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def _find(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _idle(cluster: SlurmCluster) -> int:
    command = ["sinfo", "--noheader", "--Node", "--partition=low", "--format=%t"]
    with contextlib.suppress(AssertionError):
        return sum(
            state.strip() in ("idle", "mix", "alloc")
            for state in cluster.ask(*command).splitlines()
        )
    return 0


def _wait(condition: Callable[[], object], what: str, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            logs = "".join(p.read_text(errors="replace")[-2000:] for p in folder.glob("*.out"))
            raise TimeoutError(f"{what} did not start: {logs}")
        time.sleep(0.2)
