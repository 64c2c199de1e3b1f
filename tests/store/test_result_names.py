"""Results by name: ``EXPERIMENT/RESULT`` on every store, and links to them on a local one."""

from pathlib import Path

import pytest
from numbers_lab import Lab
from rich.console import Console
from toy_steps import Times
from typer.testing import CliRunner

from pipeline import Store, TemperError
from pipeline.cli import app
from pipeline.cli.maintenance.collect import delete
from pipeline.cli.maintenance.garbage import Policy, find_garbage
from pipeline.store.catalog import Catalog
from pipeline.store.names.naming import find
from pipeline.store.names.result_names import forget_broken_links, link_results
from pipeline.store.runs import names_of_runs, read_run

pytestmark = pytest.mark.usefixtures("workers_here")


@pytest.fixture
def lab(tmp_path: Path, store: Store, console: Console) -> Lab:
    return Lab(tmp_path, store, console)


def experiment_of(store: Store) -> str:
    """What the test's own process is called."""
    return read_run(store, names_of_runs(store)[-1]).experiment


def link_of(store: Store, name: str) -> Path:
    return Path(store.root, "latest", experiment_of(store), name)


def test_a_result_is_what_the_newest_run_made_under_its_name(lab: Lab) -> None:
    lab.run(product=lab.product(), numbers=lab.numbers_again())
    catalog, experiment = Catalog(lab.store), experiment_of(lab.store)
    first = find(catalog, f"{experiment}/product")
    lab.run(product=lab.product(Times(5)))
    second = find(Catalog(lab.store), f"{experiment}/product")
    assert first.step == second.step == "multiply"
    assert first.key != second.key
    # a result that the newest run does not have is still the last one made
    assert find(Catalog(lab.store), f"{experiment}/numbers").step == "numbers"


def test_an_older_result_is_the_latest_again_once_it_is_asked_for_again(lab: Lab) -> None:
    lab.run(product=lab.product())
    first = find(Catalog(lab.store), f"{experiment_of(lab.store)}/product")
    lab.run(product=lab.product(Times(5)))
    lab.run(product=lab.product())
    name = f"{experiment_of(lab.store)}/product"
    assert find(Catalog(lab.store), name).key == first.key
    content = lab.store.content_path(first)
    assert link_of(lab.store, "product").resolve() == Path(content).resolve()


def test_a_name_that_no_run_made_is_refused_with_those_that_there_are(lab: Lab) -> None:
    lab.run(product=lab.product())
    catalog, experiment = Catalog(lab.store), experiment_of(lab.store)
    with pytest.raises(TemperError, match="has no result 'prodct'; it has: product"):
        find(catalog, f"{experiment}/prodct")
    with pytest.raises(TemperError, match=f"experiments on record: {experiment}"):
        find(catalog, "elsewhere/product")


def test_links_move_with_the_store_and_show_the_files(lab: Lab) -> None:
    lab.run(product=lab.product())
    link = link_of(lab.store, "product")
    before = sorted(path.name for path in link.iterdir())
    assert not link.readlink().is_absolute()
    moved = Path(lab.store.root).rename(Path(lab.store.root).with_name("moved"))
    there = moved / link.relative_to(lab.store.root)
    assert sorted(path.name for path in there.iterdir()) == before != []


def test_a_link_keeps_nothing_from_being_collected_and_goes_with_its_data(lab: Lab) -> None:
    lab.run(product=lab.product())
    link = link_of(lab.store, "product")
    lab.run(product=lab.product(Times(5)))
    lab.run(numbers=lab.numbers())
    delete(lab.store, find_garbage(lab.store, Policy(last=1, grace=0.0)))
    assert not link.is_symlink()


def test_no_link_is_written_through_one_that_leads_out_of_the_store(
    lab: Lab, tmp_path: Path
) -> None:
    lab.run(product=lab.product())
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = Path(lab.store.root, "latest", "experiment")
    folder.symlink_to(outside)
    link_results(lab.store, "experiment", {"product": find(Catalog(lab.store), "multiply")})
    (outside / "broken").symlink_to("nowhere")
    forget_broken_links(lab.store)
    assert [path.name for path in outside.iterdir()] == ["broken"]


def test_commands_take_the_name_of_a_result(lab: Lab) -> None:
    lab.run(product=lab.product())
    name, store = f"{experiment_of(lab.store)}/product", ["--store", lab.store.url]

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, *store])
        assert result.exit_code == 0, (arguments, result.output, result.exception)
        return result.output

    manifest = find(Catalog(lab.store), "multiply")
    assert call("path", name).strip() == lab.store.content_path(manifest)
    assert "1 artifact intact" in call("verify", name)
    assert "multiply" in call("show", name)
    call("logs", name)
    link = link_of(lab.store, "product")
    assert link.exists()
    assert "freed" in call("evict", name, "--yes")
    assert not link.is_symlink()
