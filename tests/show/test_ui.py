"""``temper ui`` as a reader meets it, and as others on and off the machine do."""

import http.client
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, grave_faults, opened
from drivers import Driver
from places import REPOSITORY, SUPPORT_PATH
from report_steps import measure, prepare
from rich.console import Console
from typer.testing import CliRunner
from waiting import wait_until

from pipeline import Store, run
from pipeline.base.errors import TemperError
from pipeline.cli import app
from pipeline.cli.ui import Site
from pipeline.show.report.server import Server
from pipeline.store.runs import names_of_runs

SECONDS = 90_000  # of a hang, in milliseconds
SCRIPT = """
import sys
from pipeline import run
from report_steps import train_until
if __name__ == "__main__":
    run({"training": train_until(sys.argv[2])}, sys.argv[1])
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(str(tmp_path_factory.mktemp("ui") / "store"))
    with open(os.devnull, "w") as nowhere:
        run({"only": measure(prepare())}, store, console=Console(file=nowhere))
    return store


@contextmanager
def serving(store: Store) -> Iterator[Server]:
    with Server(Site(store)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(
    server: Server, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> http.client.HTTPResponse:
    """What the server answers, read to its end; the path is sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in (headers or {}))
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_a_run_under_way_is_shown_as_it_goes_without_being_asked_again(
    browser: Any, tmp_path: Path
) -> None:
    store, gate = Store(str(tmp_path / "store")), tmp_path / "gate"
    store.prepare()
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(REPOSITORY), SUPPORT_PATH])
    command = [str(tmp_path / "script.py"), store.url, str(gate)]
    driver = Driver(command, Path.cwd(), {**os.environ, "PYTHONPATH": path})
    try:
        (name,) = wait_until(lambda: names_of_runs(store), "the run begins")
        with serving(store) as server, opened(browser, server.url + name) as seen:
            page = seen.page
            page.locator("#steps td .state.running").wait_for(timeout=SECONDS)
            page.locator("#steps td", has_text="6/8").wait_for(timeout=SECONDS)
            page.locator("#curves figcaption", has_text="loss").wait_for(timeout=SECONDS)
            gate.touch()
            page.locator("#results", has_text="0.1667").wait_for(timeout=SECONDS)
            page.locator("header .state.done").wait_for(timeout=SECONDS)
            assert page.locator("html[data-live]").count() == 0
            assert seen.said == []
            assert {url.partition("?")[0] for url in seen.asked} == {server.url + name}
    finally:
        gate.touch()
        assert driver.wait() == 0


@pytest.mark.slow
def test_runs_are_filtered_and_compared_by_their_key_results(
    browser: Any, tmp_path: Path, console: Console
) -> None:
    store = Store(str(tmp_path / "store"))
    for beta in (0.1, 0.5):
        run({"after": measure(prepare(), beta=beta)}, store, console=console, title=f"beta {beta}")
    with serving(store) as server, opened(browser, server.url) as seen:
        page = seen.page
        assert page.locator("td.showed data").all_inner_texts() == ["0.04762", "0.2"]
        page.get_by_label("Filter runs").fill("beta 0.1")
        assert page.locator("tbody tr:visible").count() == 1
        page.get_by_label("Filter runs").fill("")
        for box in page.locator("tbody input").all():
            box.check()
        assert grave_faults(page) == []
        page.get_by_role("button", name="Compare 2 runs").click()
        page.locator("#sweep h3", has_text="By beta").wait_for(timeout=SECONDS)
        assert seen.said == []


@pytest.mark.slow
def test_every_run_is_found_from_the_page_of_all(browser: Any, finished: Store) -> None:
    (name,) = names_of_runs(finished)
    with serving(finished) as server, opened(browser, server.url) as seen:
        assert grave_faults(seen.page) == []
        seen.page.get_by_role("link", name=name).click()
        seen.page.locator("#results").wait_for(timeout=SECONDS)
        seen.page.get_by_role("link", name="All runs").click()
        seen.page.locator("h1", has_text="Runs").wait_for(timeout=SECONDS)
        assert seen.said == []


def test_a_page_says_when_its_store_is_lost(browser: Any, finished: Store, tmp_path: Path) -> None:
    copied = shutil.copytree(finished.root, tmp_path / "store", symlinks=True)
    store = Store(str(copied))
    (name,) = names_of_runs(store)
    path = copied / "runs" / f"{name}.json"
    changed = {"outcome": "running", "experiment": "my_experiment"}
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changed))
    with serving(store) as server, opened(browser, server.url + name) as seen:
        assert seen.page.locator("h1").inner_text().startswith("my_experiment, ")
        shutil.rmtree(copied)
        seen.page.locator("#live", has_text="deleted or moved meanwhile").wait_for(timeout=SECONDS)
        assert asked(server, f"/{server.secret}/").status == 500


def test_a_port_that_is_taken_is_refused_in_one_sentence(finished: Store) -> None:
    with serving(finished) as server:
        answer = CliRunner().invoke(
            app, ["ui", "--store", finished.url, "--port", str(server.server_port)]
        )
        assert isinstance(answer.exception, TemperError)
        assert f"cannot listen on port {server.server_port}" in str(answer.exception)


def test_only_who_knows_the_address_is_answered_and_only_from_this_machine(finished: Store) -> None:
    (name,) = names_of_runs(finished)
    with serving(finished) as server:
        own, port = f"/{server.secret}/", server.server_port
        assert server.server_address[0] == "127.0.0.1"
        for path in (own, own + name):
            assert asked(server, path).status == 200
            assert asked(server, path, headers={"Host": f"localhost:{port}"}).status == 200
        for host in ("example.invalid", f"example.invalid:{port}", "127.0.0.1", "", f"[::]:{port}"):
            assert asked(server, own, headers={"Host": host}).status == 403, host
        guessed = ("/", f"/{name}", f"/{'x' * len(server.secret)}/", "/favicon.ico", f"{own}?a=1")
        beyond = ("../temper.json", "%2e%2e/temper.json", "..%2Ftemper.json", "/etc/passwd", "x")
        for path in (*guessed, *(own + path for path in beyond)):
            assert asked(server, path).status == 404, path
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert asked(server, own, method).status == 501, method


def test_a_served_page_may_be_framed_and_read_by_nobody_else(finished: Store) -> None:
    with serving(finished) as server:
        answer = asked(server, f"/{server.secret}/")
        assert answer.getheader("Content-Security-Policy") == "frame-ancestors 'none'"
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
        assert answer.getheader("Access-Control-Allow-Origin") is None
        assert answer.getheader("Referrer-Policy") == "no-referrer"
        assert asked(server, f"/{server.secret}/", "HEAD").status == 200
