"""Several drivers that share the work through a real ``luigid``."""

import itertools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers import start_driver
from job_steps import lines
from rich.console import Console
from toy_steps import Times, add, journal_lines, multiply, numbers
from waiting import wait_until

from pipeline import File, Store, TemperError, run
from pipeline.store.catalog import Catalog

DRIVER = """
import sys
from toy_steps import Times, add, multiply, numbers, slow_count
from pipeline import File, run
store, journal, source, scheduler = sys.argv[1:]
values = numbers(File(source), journal)
products = [multiply(values["train"], Times(n), journal) for n in range(1, 5)]
counts = [slow_count(n, journal, 0.1) for n in range(3, 6)]
run([add([*products], journal), *counts], store, jobs=2, scheduler=scheduler)
"""


@pytest.fixture(scope="module")
def luigid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    server = start_luigid(tmp_path_factory.mktemp("luigid"), port)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def start_luigid(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """A ``luigid`` that answers."""
    folder.mkdir(exist_ok=True)
    (folder / "luigi.cfg").write_text("[resources]\ngpus=2\nmemory=2\n")
    server = subprocess.Popen(
        [
            Path(sys.executable).with_name("luigid"),
            *("--port", str(port), "--address", "127.0.0.1"),
            *("--state-path", folder / "state.pickle", "--logdir", folder),
        ],
        env={**os.environ, "LUIGI_CONFIG_PATH": str(folder / "luigi.cfg")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_for(f"http://127.0.0.1:{port}")
    return server


def _wait_for(url: str) -> None:
    def answers() -> bool:
        try:
            urllib.request.urlopen(f"{url}/api/graph", timeout=60).close()
        except OSError:
            return False
        return True

    wait_until(answers, f"luigid starts at {url}")


@pytest.mark.slow
def test_drivers_of_one_luigid_do_each_step_once(luigid: str, store: Store, tmp_path: Path) -> None:
    (tmp_path / "numbers.txt").write_text("1 2 3 4")
    arguments = (store.root, tmp_path / "journal", tmp_path / "numbers.txt", luigid)
    drivers = [start_driver(DRIVER, *arguments) for _ in range(2)]
    for driver in drivers:
        out = driver.communicate()
        assert driver.returncode == 0, out
    ran = [line for line in journal_lines(tmp_path / "journal") if not line.startswith("count ")]
    assert sorted(ran) == ["add", *["multiply"] * 4, "numbers", *["slow_count"] * 3]
    made = [len(Catalog(store).history(step)) for step in ("add", "multiply", "slow_count")]
    assert made == [1, 4, 3]


LIMITED = """
import sys
from job_steps import lines, where
from pipeline import run
store, journal, first, scheduler = sys.argv[1:]
steps = [where(journal, int(first) + n, 0.5).on(memory="1.5GiB") for n in range(2)]
run(steps, store, jobs=2, scheduler=scheduler)
"""


@pytest.mark.attack
def test_limits_hold_over_all_drivers_and_the_page_shows_the_names_of_steps(
    luigid: str, tmp_path: Path
) -> None:
    """Each driver has a store of its own; two steps at once would be more memory than there is."""
    journal = str(tmp_path / "journal")
    drivers = [
        start_driver(LIMITED, tmp_path / f"store-{n}", journal, str(10 * n), luigid)
        for n in range(2)
    ]
    for driver in drivers:
        out = driver.communicate()
        assert driver.returncode == 0, out
    spans = sorted(json.loads(line)[2:] for line in lines(journal))
    assert len(spans) == 4
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans))
    with urllib.request.urlopen(
        f"{luigid}/api/task_list?data=%7B%22status%22:%22DONE%22%7D"
    ) as page:
        shown = json.load(page)["response"].values()
    assert [task["name"] for task in shown if "store-1" in task["params"]["store"]] == ["where"] * 2


@pytest.mark.slow
def test_after_a_kill_of_luigid_the_steps_are_done_when_it_is_there_again(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "numbers.txt").write_text("1 2 3 4")
    port = free_port()
    first = start_luigid(tmp_path / "luigid", port)
    arguments = (store.root, tmp_path / "journal", tmp_path / "numbers.txt")
    driver = start_driver(DRIVER, *arguments, f"http://127.0.0.1:{port}")
    wait_until(lambda: "numbers" in journal_lines(tmp_path / "journal"), "something runs")
    first.kill()
    first.wait()
    time.sleep(1)
    again = start_luigid(tmp_path / "luigid", port)
    try:
        out = driver.communicate()
        if driver.returncode:  # it did not outlive luigid; then one restart by hand is enough
            driver = start_driver(DRIVER, *arguments, f"http://127.0.0.1:{port}")
            out = driver.communicate()
        assert driver.returncode == 0, out
    finally:
        again.kill()
        again.wait()
    ran = [line for line in journal_lines(tmp_path / "journal") if not line.startswith("count ")]
    assert sorted(ran) == ["add", *["multiply"] * 4, "numbers", *["slow_count"] * 3]


def test_a_luigid_that_does_not_answer_is_one_clear_error(
    store: Store, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numbers.txt").write_text("1 2 3 4")
    values = numbers(File(str(tmp_path / "numbers.txt")), "/dev/null")
    roots = [add([multiply(values, Times(), "/dev/null")], "/dev/null")]
    with pytest.raises(TemperError, match=r"scheduler at http://127.0.0.1:9 does not answer"):
        run(roots, store, console=console, scheduler="http://127.0.0.1:9")
