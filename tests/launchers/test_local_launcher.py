"""Workers on this machine: devices, ranks, and being told to leave."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers import start_driver
from job_steps import count_to, gang, leave_once, lines, listening, where
from rich.console import Console
from waiting import held, is_running, wait_until

from pipeline import Step, Store, run
from pipeline.launchers import devices
from pipeline.launchers.config import LauncherConfig, LocalConfig
from pipeline.running.session import RunFailed


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with two devices, as far as ``CUDA_VISIBLE_DEVICES`` says, and none taken."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(devices, "FOLDER", tmp_path / "temper-devices")


@pytest.mark.usefixtures("two_devices")
def test_two_steps_never_share_a_device(store: Store, journal: str, console: Console) -> None:
    roots: list[Step] = [where(journal, number, 0.3).on(gpus=1) for number in range(4)]
    roots.append(where(journal, 4, 0.3).on(gpus=2, processes=1))
    roots.append(where(journal, 5))
    run(roots, store, jobs=6, console=console)
    spans = [json.loads(line) for line in lines(journal)]
    assert len(spans) == 6
    used = [
        (device, began, ended) for _, names, began, ended in spans for device in names.split(",")
    ]
    for device in ("0", "1"):
        mine = sorted((began, ended) for name, began, ended in used if name == device)
        assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(mine))
    assert {number: names for number, names, *_ in spans}[4] == "0,1"
    assert {number: names for number, names, *_ in spans}[5] == ""


@pytest.mark.usefixtures("two_devices")
def test_a_device_stays_taken_while_a_worker_lives_that_its_driver_has_left(tmp_path: Path) -> None:
    code = "import time; time.sleep(600)"
    with devices.taken(2, lambda seconds: True) as mine:
        assert mine is not None
        assert len(mine.names) == 2
        worker = subprocess.Popen([sys.executable, "-c", code], pass_fds=mine.files)
    try:
        with devices.taken(1, lambda seconds: True) as none:
            assert none is None
    finally:
        worker.kill()
        worker.wait()
    with devices.taken(2, lambda seconds: True) as again:
        assert again == mine or (again is not None and again.names == mine.names)


SMI = """#!/bin/sh
echo "0, GPU-aaaa, NVIDIA A100-SXM4-40GB, 40960"
echo "1, GPU-bbbb, NVIDIA H100 80GB HBM3, 81559"
echo asked >> "$0.asked"
"""


@pytest.fixture
def two_kinds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, two_devices: None) -> Iterator[None]:
    """A driver of NVIDIA's, as far as ``nvidia-smi`` says."""
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    devices._described.cache_clear()
    yield
    devices._described.cache_clear()


@pytest.mark.usefixtures("two_kinds")
@pytest.mark.parametrize("names", ["1", "GPU-bbbb", "GPU-b,0"])
def test_a_device_has_one_lock_whatever_a_driver_calls_it(
    monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    with devices.taken(1, lambda seconds: True, "h100") as first:
        assert first is not None
        assert first.names == ("1",)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        with devices.taken(1, lambda seconds: True, "H100") as second:
            assert second is None
    with devices.taken(1, lambda seconds: True, "H100") as second:
        assert second is not None
        assert second.names == (names.split(",")[0],)


def test_a_step_that_is_told_to_leave_goes_on_from_its_scratch(
    store: Store, journal: str, console: Console
) -> None:
    (made,) = run([leave_once(journal, 2)], store, console=console).values()
    assert lines(journal) == ["left", "left", "done"]
    attempts = list(Path(store.root, "attempts", "leave_once", made.key).iterdir())
    assert len(attempts) == 3


def test_a_step_that_heeds_the_request_has_time_to_save_what_it_has(
    store: Store, journal: str, console: Console
) -> None:
    """Here its time is over, twice."""
    root = count_to(6, journal).on(time="2s")
    patient = LauncherConfig(local=LocalConfig(grace_seconds=600.0))
    with held(journal, 3):  # an attempt that comes to a number beyond waits there for its end
        run([root], store, console=console, launcher=patient)
    left = [int(line.split()[-1]) for line in lines(journal) if line.startswith("left")]
    went_on = [int(line.split()[-1]) for line in lines(journal) if line.startswith("from")]
    assert went_on == [0, *left]
    assert len(left) > 1
    counted = [int(line.split()[-1]) for line in lines(journal) if line.startswith("count")]
    assert sorted({*counted, *left}) == list(range(1, 7))
    assert len(counted) == len(set(counted))


TWO_STEPS = """
import sys
from job_steps import count_to, where
from pipeline import run
from pipeline.launchers.config import LauncherConfig, LocalConfig
store, journal = sys.argv[1:]
patient = LauncherConfig(local=LocalConfig(grace_seconds=600.0))  # however slow the machine is
run([count_to(600, journal), where(journal, 1, 600.0)], store, jobs=2, launcher=patient)
"""


def test_after_ctrl_c_steps_that_run_together_have_time_to_save_what_they_have(
    store: Store, journal: str
) -> None:
    with held(journal, 3):
        driver = start_driver(TWO_STEPS, store.root, journal)
        wait_until(lambda: len(lines(journal)) > 3)
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        driver.wait()
    assert lines(journal)[-1].startswith("left at")


# --- several ranks -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")  # their ranks are processes of torchrun's as ever
def test_after_a_rank_is_killed_all_begin_again_from_their_scratch(
    store: Store, journal: str, console: Console
) -> None:
    root = gang(journal, "kill 1").on(processes=2, retries=1)
    (made,) = run([root], store, console=console).values()
    assert made.metrics == {"ranks": 2}
    begun = [line.split(" pid")[0] for line in lines(journal) if " pid " in line]
    assert Counter(begun) == {"rank 0": 2, "rank 1": 2}
    wait_until(lambda: not alive(journal))


@pytest.mark.attack
@pytest.mark.slow
def test_when_a_rank_raises_the_step_fails_with_its_message(
    store: Store, journal: str, console: Console
) -> None:
    with pytest.raises(RunFailed):
        run([gang(journal, "raise 1").on(processes=2)], store, console=console)
    assert "rank 1: this rank has no data" in console.file.getvalue()  # type: ignore[attr-defined]
    wait_until(lambda: not alive(journal))


@pytest.mark.attack
@pytest.mark.slow
def test_ranks_that_are_told_to_leave_all_save_and_go_on(
    store: Store, journal: str, console: Console
) -> None:
    """Here only the worker is told; Slurm tells every process of a job."""

    def tell() -> None:
        wait_until(lambda: len(listening(journal)) == 2)
        (worker,) = wait_until(lambda: children(os.getpid()))
        os.kill(worker, signal.SIGTERM)

    teller = threading.Thread(target=tell)
    teller.start()
    root = gang(journal, "leave").on(processes=2)
    (made,) = run([root], store, console=console).values()
    teller.join()
    assert made.metrics == {"ranks": 2}
    left = sorted(line for line in lines(journal) if line.endswith("left"))
    assert left == ["rank 0 left", "rank 1 left"]


DRIVER = """
import sys
from job_steps import gang
from pipeline import run
run([gang(sys.argv[2], "leave").on(processes=2)], sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_after_a_kill_no_rank_is_left(store: Store, journal: str, victim: str) -> None:
    driver = start_driver(DRIVER, store.root, journal, is_parent=True)
    wait_until(lambda: len(alive(journal)) == 2)
    if victim == "driver":
        driver.kill()
    else:
        (worker,) = children(driver.pid)
        os.kill(worker, signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not alive(journal))


def children(pid: int) -> list[int]:
    """The workers that a process has started."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += (thread / "children").read_text().split()
    return [
        int(child)
        for child in found
        if b"pipeline.worker.attempt" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def alive(journal: str) -> list[int]:
    """The ranks that run."""
    pids = [int(found[1]) for line in lines(journal) if (found := re.search(r"pid (\d+)", line))]
    return [pid for pid in pids if is_running(pid)]


BESIDE = """
import os
from pipeline import Metrics, Output, step

@step
def look(out: Output) -> Metrics:
    (out.path / "result").write_text("seen")
    names = ("SET_BY_A_SHELL", "MODE", "HF_HOME", "HF_TOKEN", "SET_IN_CONFIG")
    return {name: os.environ.get(name, "unset") for name in names}
"""
SETS = """
import os, sys
from pipeline import run
from pipeline.launchers.config import LauncherConfig, LocalConfig
os.environ |= {"SET_BY_A_SHELL": "changed", "MODE": "fast", "HF_HOME": "/other", "HF_TOKEN": "new"}
os.environ["OF_A_" + "LIBRARY"] = "1"  # it is named by no code of the project
os.environ["SET_IN_CONFIG"] = "too late"
from beside import look

local = LocalConfig(warm="warm" in sys.argv, env={"SET_IN_CONFIG": "1"})
made = run([look()], "store", launcher=LauncherConfig(local=local))
print("seen:", dict(made["look"].metrics))
"""


@pytest.mark.parametrize("way", ["warm", "fresh"])
def test_a_worker_sees_the_environment_in_which_the_driver_was_started(
    way: str, tmp_path: Path
) -> None:
    """And keys of services and places of caches as they are now, which notebooks set in cells."""
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "sets.py").write_text(SETS)
    environment = {**os.environ, "SET_BY_A_SHELL": "as the shell says", "HF_TOKEN": "old"}
    for name in ("MODE", "HF_HOME", "SET_IN_CONFIG"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "sets.py", way],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    seen = {
        "SET_BY_A_SHELL": "as the shell says", "MODE": "unset",
        "HF_HOME": "/other", "HF_TOKEN": "new", "SET_IN_CONFIG": "1",
    }  # fmt: skip
    assert f"seen: {seen}" in done.stdout, done.stderr
    told = " ".join(done.stdout.split())
    assert "steps do not see the present values of MODE, SET_BY_A_SHELL: " in told
    assert told.count("do not see") == 1
