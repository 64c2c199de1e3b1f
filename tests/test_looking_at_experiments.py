"""Real experiments on a tiny model, looked at: losses side by side, divergence, card, report."""

from pathlib import Path

import pytest
from browser import chromium, opened
from test_experiments import SMALL, Desk, tiny_model  # noqa: F401
from typer.testing import CliRunner

from pipeline.cli import app

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def desk(
    repository: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Desk:
    folder = tmp_path_factory.mktemp("looking")
    settings = ("model=local", f"model.path={tiny_model}", "model.license=apache-2.0", *SMALL)
    desk = Desk(repository, "preference_losses", folder, settings)
    desk.run("losses=[dpo,simpo]")
    kl = ("kl.prompts=3", "kl.sampling.num_completions=2", "kl.sampling.max_new_tokens=8")
    Desk(repository, "dpo_ultrafeedback", folder, settings).run("measure_kl=true", *kl)
    return desk


def test_losses_are_evaluated_side_by_side_from_one_start(desk: Desk) -> None:
    assert len(desk.made("train_sft")) == 1
    assert len(desk.made("train_dpo")) == len(desk.made("train_reference_free")) == 1
    compared = [made for made in desk.made("evaluate") if "gain/logps/margins" in made.metrics]
    assert len(compared) == 2  # before and base model have nothing to be compared with
    for made in compared:
        assert 0 < made.metrics["gain/logps/margins/p"] <= 1
        for name in ("accuracies_at_equal_length", "calibration_error"):
            found = made.metrics[f"eval_rewards/{name}"]
            assert 0 <= found["low"] <= found["high"] <= 1


def test_the_divergence_is_of_what_the_model_draws_itself(desk: Desk) -> None:
    (made,) = desk.made("measure_kl")
    assert made.metrics["prompts"] == 3
    assert made.metrics["responses"] == 6
    kl = made.metrics["kl"]
    assert kl["low"] <= kl["value"] <= kl["high"]
    assert abs(made.metrics["kl_per_token"]["value"]) < 10


def test_the_card_says_how_it_was_before_what_it_is_made_from_and_the_licence(desk: Desk) -> None:
    card = (desk.content("export_hf") / "README.md").read_text()
    assert 'license: "apache-2.0"' in card
    assert "| metric | before | after | 95 % interval |" in card
    assert "| base model | import_model |" in card


def test_the_report_of_a_real_sweep_and_of_a_real_experiment(desk: Desk, tmp_path: Path) -> None:
    runs = sorted(record["run"] for record in desk.store.runs())
    with chromium() as browser:
        for number, run in enumerate(runs):
            file = tmp_path / f"{number}.html"
            arguments = ["report", run, "-o", str(file), "--store", desk.store.url]
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, result.exception
            for width, theme in ((1200, "light"), (400, "dark")):
                with opened(browser, file, width, theme) as seen:
                    assert (seen.asked, seen.said) == ([file.as_uri()], [])
                    for section in ("results", "steps", "curves", "samples", "data",
                                    "configuration", "provenance"):  # fmt: skip
                        assert seen.page.locator(f"#{section}").is_visible()
                    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
                    titles = seen.page.locator("h3").all_inner_texts()
                    assert any("What became of the rows" in title for title in titles)
                    assert any("Lengths in tokens" in title for title in titles)
                    assert any("Calibration" in title for title in titles)
