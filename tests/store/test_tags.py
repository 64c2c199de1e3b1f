"""Names that people give to artifacts: what they keep, where they work, and what they refuse."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from numbers_lab import Lab
from rich.console import Console
from toy_steps import Times, journal_lines, parity
from typer.testing import CliRunner, Result

from pipeline import File, Made, Step, Store, TemperError, adopt, run
from pipeline.cli import app
from pipeline.cli.maintenance.collect import delete
from pipeline.cli.maintenance.garbage import Policy, find_garbage
from pipeline.dag.inputs import forget_sources
from pipeline.running.run_request import built
from pipeline.store.names.tags import read_tag, set_tag
from pipeline.store.runs import forget_run, names_of_runs

pytestmark = pytest.mark.usefixtures("workers_here")

COLLECT = Policy(grace=0)


@pytest.fixture
def lab(tmp_path: Path, store: Store, console: Console) -> Lab:
    return Lab(tmp_path, store, console)


def temper(lab: Lab, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--store", lab.store.url])


def made(lab: Lab, step: Step) -> Made:
    return run({"it": step}, lab.store, console=lab.console)["it"]


def two(lab: Lab) -> tuple[Made, Made]:
    return made(lab, lab.product(Times(3))), made(lab, lab.product(Times(5)))


def forget_all_runs(store: Store) -> None:
    for name in names_of_runs(store):
        forget_run(store, name)


def test_a_tagged_artifact_and_what_it_was_made_from_outlive_their_runs(lab: Lab) -> None:
    first, second = two(lab)
    assert temper(lab, "tag", second.name, "v1").exit_code == 0
    forget_all_runs(lab.store)
    delete(lab.store, find_garbage(lab.store, COLLECT))
    assert second.path.is_dir()
    assert not Path(first.url).exists()
    before = journal_lines(lab.journal)
    lab.run(product=lab.product(Times(5)).expect("v1"))  # all of it is cached
    assert journal_lines(lab.journal) == before
    assert temper(lab, "tag", "--delete", "v1").exit_code == 0
    forget_all_runs(lab.store)
    delete(lab.store, find_garbage(lab.store, COLLECT))
    assert lab.store.steps() == []


def test_a_tag_given_while_garbage_is_collected_keeps_its_artifact(lab: Lab) -> None:
    first, _ = two(lab)
    forget_all_runs(lab.store)
    found = find_garbage(lab.store, COLLECT)
    set_tag(lab.store, "v1", first.manifest)
    delete(lab.store, found)
    assert first.path.is_dir()


def test_a_tagged_artifact_is_evicted_only_after_its_tag_was_deleted(lab: Lab) -> None:
    first, _ = two(lab)
    temper(lab, "tag", first.name, "v1")
    refused = temper(lab, "evict", first.name, "--yes")
    assert "is tagged v1" in str(refused.exception)
    assert "temper tag --delete v1" in str(refused.exception)
    temper(lab, "tag", "--delete", "v1")
    assert temper(lab, "evict", first.name, "--yes").exit_code == 0
    assert "is gone" in str(temper(lab, "tag", first.name, "v1").exception)


def test_a_tag_moves_only_by_force_and_is_listed_and_shown(lab: Lab) -> None:
    first, second = two(lab)
    assert "none" in str(temper(lab, "tag", "--delete", "v1").exception)
    temper(lab, "tag", first.name, "v1")
    assert temper(lab, "tag", first.name, "v1").exit_code == 0  # it has the name
    refused = temper(lab, "tag", second.name, "v1")
    assert f"v1 is the tag of {first.name}" in str(refused.exception)
    assert "--force" in str(refused.exception)
    assert first.name in temper(lab, "tag").stdout
    assert temper(lab, "tag", second.name, "v1", "--force").exit_code == 0
    listed = temper(lab, "tag").stdout
    assert second.name in listed
    assert first.name not in listed
    assert temper(lab, "path", "v1").stdout.strip() == str(second.path)
    assert f"{second.name}, tagged v1" in temper(lab, "explain", "v1").stdout
    report = Path(lab.store.root).with_name("report.html")
    assert temper(lab, "report", "-o", str(report)).exit_code == 0
    assert "tagged v1" in report.read_text()


def test_a_tag_has_the_name_of_no_step_and_is_a_component_of_a_path(lab: Lab) -> None:
    manifest = two(lab)[0].manifest
    with pytest.raises(TemperError, match="multiply is a step"):
        set_tag(lab.store, "multiply", manifest)
    for name in ("a/b", "..", ".x", "-x", "v 1", "", "x" * 101, "v\n1"):
        with pytest.raises(TemperError, match="no name for a tag"):
            set_tag(lab.store, name, manifest)


def test_a_tag_is_an_input_with_the_content_of_its_artifact(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, _ = two(lab)
    set_tag(lab.store, "v1", first.manifest)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("TEMPER_STORE", lab.store.url)
    assert adopt("v1").fingerprint == adopt(first.path).fingerprint
    monkeypatch.delenv("TEMPER_STORE")
    assert File("v1").url == "v1"  # not the store of this script
    config = type("Config", (), {"store": lab.store.url})()
    step = built(lambda _: {"it": adopt("v1")}, config)["it"]
    assert made(lab, step).digest == first.digest
    monkeypatch.setenv("TEMPER_STORE", lab.store.url)
    (elsewhere / "v1").write_text("a file comes first")
    assert File("v1").url == "v1"
    (elsewhere / "v1").unlink()
    os.chmod(changed := next(file for file in first.path.rglob("*") if file.is_file()), 0o644)
    changed.write_bytes(changed.read_bytes()[::-1] + b" ")
    forget_sources()
    with pytest.raises(TemperError, match="tagged v1, is lost or damaged"):
        adopt("v1")


def test_a_plan_that_would_make_another_artifact_than_expected_ends_before_a_step(
    lab: Lab,
) -> None:
    first, second = two(lab)
    set_tag(lab.store, "v1", first.manifest)
    before = journal_lines(lab.journal)
    for by, what in ((5, f"this plan has {second.name}"), (7, "make it anew .* 7")):
        with pytest.raises(TemperError, match=f"expected to be v1, which is {first.name}.*{what}"):
            lab.run(product=lab.product(Times(by)).expect("v1"))
    with pytest.raises(TemperError, match=r"there is no tag 'v2'.*: v1"):
        lab.run(product=lab.product(Times(3)).expect("v2"))
    # of an input, of which an equal step without it is a result, too
    above = lab.product(Times(5))
    with pytest.raises(TemperError, match="expected to be v1"):
        lab.run(product=above, below=parity(above.expect("v1"), lab.journal))
    assert journal_lines(lab.journal) == before
    assert made(lab, lab.product(Times(3)).expect("v1")).digest == first.digest


@pytest.mark.parametrize(
    "written",
    [
        lambda good: b"no JSON",
        lambda good: json.dumps(good | {"step": "../../elsewhere"}).encode(),
        lambda good: json.dumps(good | {"generation": True}).encode(),
        lambda good: json.dumps(good | {"time": "\x1b[31m"}).encode(),
        lambda good: b"[" * 100_000,
    ],
)
def test_a_tag_that_temper_did_not_write_is_one_sentence_and_nothing_is_deleted(
    lab: Lab, written: Callable[[dict[str, object]], bytes]
) -> None:
    first, _ = two(lab)
    set_tag(lab.store, "v1", first.manifest)
    file = Path(lab.store.root, "tags", "v1.json")
    file.write_bytes(written(json.loads(file.read_bytes())))
    forget_all_runs(lab.store)
    for words in (["path", "v1"], ["gc", "--yes", "--grace", "0"], ["evict", first.name, "--yes"]):
        assert "v1.json is damaged" in str(temper(lab, *words).exception)
    assert first.path.is_dir()
    assert "v1.json is damaged" in temper(lab, "tag").stdout
    assert temper(lab, "explain", first.name).exit_code == 0
    assert temper(lab, "tag", "--delete", "v1").exit_code == 0


def test_a_tag_of_what_is_not_in_the_store_or_is_another_artifact_finds_nothing(lab: Lab) -> None:
    first, second = two(lab)
    set_tag(lab.store, "v1", first.manifest)
    file = Path(lab.store.root, "tags", "v1.json")
    for other in ({"attempt": second.manifest.attempt}, {"digest": second.digest}):
        file.write_text(json.dumps(json.loads(file.read_bytes()) | other))
        assert read_tag(lab.store, "v1") is not None
        assert "is not in the store" in str(temper(lab, "path", "v1").exception)
