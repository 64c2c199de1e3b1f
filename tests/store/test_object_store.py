"""The same pipeline on object stores: real clients against servers that enforce preconditions."""

import secrets
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from manifests import manifest
from rich.console import Console
from toy_steps import Times, journal_lines, multiply, numbers

from pipeline import File, Step, Store, TemperError, look_again, run
from pipeline.plan.planning import make_plan
from pipeline.store import network_timeouts
from pipeline.store.catalog import Catalog
from pipeline.store.objects import Objects


@pytest.fixture(params=["gcs", pytest.param("s3", marks=pytest.mark.attack)])
def url(request: pytest.FixtureRequest) -> str:
    return f"{request.getfixturevalue(f'{request.param}_bucket')}/{secrets.token_hex(4)}"


@pytest.mark.usefixtures("forked_workers")
def test_an_experiment_runs_once_and_is_cached_after(
    url: str, tmp_path: Path, console: Console
) -> None:
    (tmp_path / "numbers.txt").write_text("1 2 3 4")
    journal = str(tmp_path / "journal.txt")

    def product(factor: int) -> Step:
        values = numbers(File(str(tmp_path / "numbers.txt")), journal)
        return multiply(values["train"], Times(factor), journal)

    made = run({"product": product(2)}, url, console=console)
    assert made["product"].metrics == {"largest": 6}
    run({"product": product(2)}, url, console=console)
    run({"product": product(3)}, url, console=console)
    assert journal_lines(journal) == ["numbers", "multiply", "multiply"]
    assert f"{url}/attempts/multiply" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_bucket_that_does_not_exist_is_named(url: str) -> None:
    scheme = url.partition("://")[0]
    with pytest.raises(TemperError, match="there is no bucket temper-none; set store="):
        Store(f"{scheme}://temper-none/store").prepare()


def test_a_page_in_place_of_an_object_is_told_as_the_answer_of_a_gateway(gcs_bucket: str) -> None:
    store = Store(f"{gcs_bucket}/{secrets.token_hex(4)}")
    store.prepare()
    made = store.commit(manifest("first"))
    page = b"<html><head><title>502 Bad Gateway</title></head></html>"
    told = r"cannot read .* begins with '<html>.* a gateway or proxy may have answered.*; check"
    for path in ("temper.json", f"manifests/{made.step}/{made.key}.json"):
        store.objects.replace(f"{store.root}/{path}", page)
    with pytest.raises(TemperError, match=told):
        store.check_layout()
    with pytest.raises(TemperError, match=told):
        Catalog(store).latest(made.step, made.key)
    assert [unread.damaged for unread in Catalog(store).unreadable()] == [False]


@pytest.mark.usefixtures("workers_here")
def test_an_evicted_input_is_made_again_where_it_is_needed(
    gcs_bucket: str, tmp_path: Path, console: Console
) -> None:
    (tmp_path / "numbers.txt").write_text("1 2 3 4")
    url, journal = f"{gcs_bucket}/{secrets.token_hex(4)}", str(tmp_path / "journal.txt")
    store = Store(url)
    values = numbers(File(str(tmp_path / "numbers.txt")), journal)

    def run_product(factor: int) -> None:
        run([multiply(values["train"], Times(factor), journal)], store, console=console)

    run_product(2)
    store.evict(Catalog(store).history("numbers")[0])
    run_product(2)
    run_product(3)
    assert journal_lines(journal) == ["numbers", "multiply", "numbers", "multiply"]


@pytest.mark.usefixtures("workers_here")
def test_a_step_is_made_once_although_its_bucket_fails_for_a_while(
    gcs_bucket: str, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numbers.txt").write_text("1 2 3 4")
    url, journal = f"{gcs_bucket}/{secrets.token_hex(4)}", str(tmp_path / "journal.txt")
    failed = []
    places = {"get": "/content/", "put": "/content/", "replace": "/report.json"}
    for name, place in {**places, "create": "manifests", "sizes": "/scratch/"}.items():

        def fail_once(objects: Objects, given: Any, *data: Any, ask: Any, place: str) -> Any:
            if place in str(given) and ask not in failed:
                failed.append(ask)
                raise OSError("503: try again later")
            return ask(objects, given, *data)

        method = partialmethod(fail_once, ask=getattr(Objects, name), place=place)
        monkeypatch.setattr(Objects, name, method)
    monkeypatch.setattr(network_timeouts, "LONGEST_PAUSE_SECONDS", 0.0)
    made = numbers(File(str(tmp_path / "numbers.txt")), journal)
    run([multiply(made["train"], Times(2), journal)], url, console=console)
    assert journal_lines(journal) == ["numbers", "multiply"]
    assert len(failed) == 5


def test_input_files_in_a_bucket_are_known_by_what_is_in_them(
    url: str, tmp_path: Path, console: Console
) -> None:
    store, journal = Store(url), str(tmp_path / "journal.txt")
    store.objects.replace(f"{store.root}/data/numbers.txt", b"1 2 3 4")

    def states() -> list[str]:
        # the step never runs: it would read a local path
        values = numbers(File(f"{url}/data/numbers.txt"), journal)
        return [values.fingerprint, make_plan({"n": values}, store).steps[0].state.value]

    before = states()
    store.objects.replace(f"{store.root}/data/numbers.txt", b"1 2 3 4")
    look_again()
    assert states() == before
    store.objects.replace(f"{store.root}/data/numbers.txt", b"1 2 3 5")
    look_again()
    assert states() != before
