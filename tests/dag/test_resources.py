"""What steps ask of machines, and what becomes of it before anything runs."""

import sys
from pathlib import Path

import pytest
from job_steps import lines, where
from rich.console import Console

from pipeline import Store, TemperError, run
from pipeline.dag.resources import Resources
from pipeline.launchers.config import LauncherConfig, LocalConfig
from pipeline.launchers.placement import requests

pytestmark = pytest.mark.usefixtures("workers_here")


def test_asking_for_a_machine_changes_neither_the_key_nor_the_step(tmp_path: Path) -> None:
    plain = where(str(tmp_path))
    asked = plain.on(gpus=8, nodes=2, accelerator="H100", memory="64GiB", time="12h")
    assert asked.fingerprint == plain.fingerprint
    assert plain.resources == Resources()
    assert (asked.resources.gpus, asked.resources.num_processes) == (8, 8)
    assert (asked.resources.memory_bytes, asked.resources.seconds) == (64 * 2**30, 12 * 3600)
    assert asked.on(gpus=4).resources == Resources(4, 2, "H100", memory="64GiB", time="12h")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2d", 172800), ("1.5h", 5400), ("02:30:00", 9000), ("1-00:00:10", 86410)],
)
def test_times_are_read_as_people_write_them(text: str, seconds: int) -> None:
    assert Resources(time=text).seconds == seconds


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"gpus": -1}, "where.on: gpus=-1: give a whole number from 0"),
        ({"nodes": 0}, "nodes=0"),
        ({"gpus": True}, "gpus=True"),
        ({"memory": "much"}, "memory='much': give it as in 64GiB"),
        ({"time": "soon"}, "time='soon': give it as in 90m"),
        ({"time": "0s"}, "time='0s'"),
        ({"accelerator": "H100"}, "say how many, as in gpus=8"),
        ({"tpu": "v5p-8", "gpus": 1}, "one or the other"),
        ({"tpu": "v5p-8; rm"}, "give its name"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_at_the_call(asked: dict, message: str) -> None:
    with pytest.raises(TemperError, match=message.replace("(", r"\(")):
        where("journal").on(**asked)


def test_a_step_comes_before_the_defaults_for_its_name() -> None:
    root = where("journal").on(gpus=2)
    defaults = {"where": Resources(gpus=8, nodes=4), "another": Resources(nodes=9)}
    assert requests([root], defaults) == {root.fingerprint: Resources(gpus=2, nodes=4)}


def test_equal_calls_are_one_step_and_cannot_ask_for_different_things() -> None:
    plain, asked = where("journal"), where("journal").on(gpus=2)
    expected = {plain.fingerprint: Resources(gpus=2)}
    assert requests([plain, asked], {}) == requests([asked, plain], {}) == expected
    with pytest.raises(TemperError, match=r"where asks for gpus=2 in one place and for gpus=4"):
        requests([asked, where("journal").on(gpus=4)], {})


def test_what_no_launcher_has_is_refused_before_anything_runs(
    store: Store, tmp_path: Path, console: Console
) -> None:
    journal = tmp_path / "journal"
    roots = [where(str(journal)), where(str(journal), 1).on(gpus=8, nodes=2)]
    with pytest.raises(
        TemperError, match=r"where asks for gpus=8, nodes=2, and local has one node"
    ):
        run(roots, store, console=console)
    assert not lines(journal)
    assert not Path(store.root).exists()
    config = LauncherConfig(steps={"where": Resources(gpus=1)}, local=LocalConfig(gpus=0))
    with pytest.raises(TemperError, match=r"where asks for gpus=1, and local has gpus=0"):
        run(roots[:1], store, console=console, launcher=config)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"gpuz": 1}, "launcher.steps.where: gpuz is none of gpus, nodes"),
        ({"memory": "much"}, "launcher.steps.where: memory='much': give it as in 64GiB"),
        (8, "launcher.steps.where: 8 is none of gpus"),
    ],
)
def test_a_mistake_in_the_defaults_names_the_step_and_the_field(
    store: Store, console: Console, asked: object, message: str
) -> None:
    with pytest.raises(TemperError, match=message):
        run([where("j")], store, console=console, launcher=LauncherConfig(steps={"where": asked}))


def test_a_launcher_whose_client_is_not_installed_says_what_to_install(
    store: Store, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [name for name in sys.modules if name.startswith("ray.")]  # by tests before
    for name in ("ray", *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    told = r"launcher ray needs the package ray, .* pip install 'temper-ml\[ray\]'"
    with pytest.raises(TemperError, match=told):
        run([where("journal")], store, console=console, launcher=LauncherConfig(use=["ray"]))


@pytest.mark.parametrize(
    ("tpu", "hosts", "chips"),
    [
        ("v5p-8", 1, 4),
        ("v5p-32", 4, 16),
        ("v4-16", 2, 8),
        ("v6e-8", 1, 8),
        ("v5litepod-16", 4, 16),
        ("mine-64", 1, 1),
    ],
)
def test_the_hosts_of_a_tpu_slice_follow_from_its_name(tpu: str, hosts: int, chips: int) -> None:
    assert Resources(tpu=tpu).num_nodes == hosts
    assert Resources(tpu=tpu).num_chips == chips
    assert Resources(tpu=tpu, nodes=3).num_nodes == 3
