"""What a reader does with a report: looks up values, sorts, searches, saves, or has no script."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, grave_faults, opened
from report_steps import judge, measure, prepare
from rich.console import Console

from pipeline import Store, run
from pipeline.cli.reports import Looks, story_of
from pipeline.show.report.page import render
from pipeline.store.catalog import Catalog
from pipeline.store.runs import read_runs

pytestmark = pytest.mark.usefixtures("workers_in_module")

MANY = 41
"""Results: a table of at most 40 shows all rows at once."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with a baseline and a sweep, and another run before it."""
    folder = tmp_path_factory.mktemp("reading")
    store, data = Store(str(folder / "store")), prepare()
    with open("/dev/null", "w") as nowhere:
        console = Console(file=nowhere)
        run({"swept": measure(data, beta=0.5)}, store, console=console)
        before = judge(40, answer="It is three, I think.")
        after = judge(60, 20, 0.004, "It is four, I think.", baseline=before)
        swept = {f"b{at}": measure(data, beta=at / 10) for at in range(1, 8) if at != 5}
        last = {"swept": measure(data, beta=0.9)}
        run({"SFT": before, "=DPO": after, **swept, **last}, store, console=console)
    newest = read_runs(store)[-1:]
    (folder / "page.html").write_text(render(story_of(newest, Catalog(store), Looks(newest))))
    return folder / "page.html"


def curves(seen: Any) -> Any:
    return seen.page.locator(".curves", has_text="measure").first


@pytest.mark.slow
def test_the_value_under_the_pointer_or_the_cursor_is_told(browser: Any, page: Path) -> None:
    with opened(browser, page) as seen:
        drawing = curves(seen).locator(".drawing").first
        told = drawing.locator(".readout")
        box = drawing.bounding_box()
        drawing.hover(position={"x": box["width"] - 12, "y": box["height"] / 2})
        assert told.locator("b").inner_text() == "step 40"
        assert "0.2 b1" in told.locator("div").all_inner_texts()  # 1 / (1 + 0.1 · 40)
        seen.page.mouse.move(0, 0)
        assert told.inner_text() == ""
        drawing.focus()
        for key, step in (("Home", 1), ("ArrowRight", 2), ("End", 40), ("ArrowLeft", 39)):
            seen.page.keyboard.press(key)
            assert told.locator("b").inner_text() == f"step {step}"


@pytest.mark.slow
def test_a_logarithmic_axis_and_smoothing_move_the_lines_and_back(browser: Any, page: Path) -> None:
    with opened(browser, page) as seen:
        group = curves(seen)
        line = group.locator("polyline[data-series]").first
        plain = line.get_attribute("points")
        log = group.get_by_label("logarithmic")
        log.check()
        assert line.get_attribute("points") != plain
        assert group.locator("[data-axes=logarithmic]").first.is_visible()
        log.uncheck()
        assert line.get_attribute("points") == plain
        slider = group.get_by_label("smoothing")
        slider.fill("0.9")
        smooth = line.get_attribute("points")
        assert smooth != plain
        assert smooth.split()[0] == plain.split()[0]  # the first value is its own average
        slider.fill("0")
        assert line.get_attribute("points") == plain


@pytest.mark.slow
def test_a_table_is_sorted_by_what_is_clicked(browser: Any, page: Path) -> None:
    with opened(browser, page) as seen:
        table = seen.page.locator("table.results.wide")
        button = table.get_by_role("button", name="loss")
        losses = "rows => rows.map(row => Number(row.querySelector('td data').value))"
        for order in (False, True):
            button.click()
            found = table.locator("tbody tr").evaluate_all(losses)
            assert found == sorted(found, reverse=order)
        assert table.locator("th[aria-sort=descending]").inner_text() == "loss"


@pytest.mark.slow
def test_a_table_is_saved_with_all_digits_and_no_formulas(browser: Any, page: Path) -> None:
    with opened(browser, page) as seen:
        with seen.page.expect_download() as download:
            seen.page.get_by_role("button", name="Save as CSV: judge").click()
        rows = list(csv.reader(io.StringIO(Path(download.value.path()).read_text("utf-8"))))
        assert download.value.suggested_filename == "judge.csv"
        assert rows[0] == [
            "metric", "SFT", "SFT low", "SFT high", "'=DPO", "'=DPO low", "'=DPO high",
        ]  # fmt: skip
        named = {row[0].splitlines()[0]: row for row in rows[1:]}
        assert named["reward"][-3:] == ["1.5", "", ""]
        assert seen.said == []


@pytest.mark.slow
def test_samples_are_searched_marked_and_coloured(browser: Any, page: Path) -> None:
    with opened(browser, page) as seen:
        sample = seen.page.locator(".sample", has_text="2 + 2?")
        assert sample.locator("mark").all_inner_texts() == ["four"]
        colours = {
            name: sample.locator("li", has_text=name).nth(at).get_attribute("class")
            for name, at in (("short", 0), ("true", 0))
        }
        assert colours == {"short": "good", "true": "bad"}
        search = seen.page.get_by_label("Search prompts and answers")
        search.fill("2 + 2")
        assert seen.page.locator(".sample:visible").count() == 1
        search.fill("")
        assert seen.page.locator(".sample:visible").count() > 1


@pytest.mark.slow
def test_without_a_script_everything_can_be_read_and_nothing_is_offered(
    browser: Any, page: Path
) -> None:
    with opened(browser, page, scripts=False) as seen:
        for part in (
            "header .headline",
            "table.results",
            "#curves svg",
            "#samples mark",
            "#history",
        ):
            assert seen.page.locator(part).first.is_visible(), part
        assert seen.page.locator("button, input").count() == 0
        assert not seen.page.locator(".legend .aside").first.is_visible()


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with many results."""
    folder = tmp_path_factory.mktemp("many")
    store, data = Store(str(folder / "store")), prepare()
    with open("/dev/null", "w") as nowhere:
        results = {f"b{at}": measure(data, beta=at / 10) for at in range(1, MANY + 1)}
        run(results, store, console=Console(file=nowhere))
    newest = read_runs(store)
    (folder / "page.html").write_text(render(story_of(newest, Catalog(store), Looks(newest))))
    return folder / "page.html"


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1200])
def test_many_results_make_no_endless_page_and_a_link_still_shows_what_it_names(
    browser: Any, long_page: Path, width: int
) -> None:
    with opened(browser, long_page, width) as seen:
        heights = "[...document.querySelectorAll('.scroll')].map(one => one.clientHeight)"
        assert max(seen.page.evaluate(heights)) <= 750
        assert seen.page.locator("#results tbody tr").count() == MANY
        seen.page.locator("#steps table a").last.click()
        seen.page.wait_for_function("scrollY > 0")
        card = seen.page.locator("#configuration details").last
        assert card.get_attribute("open") is not None
        region = seen.page.locator("#configuration .clip").bounding_box()
        top = card.bounding_box()["y"]
        assert region["y"] <= top <= region["y"] + region["height"]
        if width == 400:  # where every table is a region that scrolls
            assert grave_faults(seen.page, colours=False) == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_axe_finds_no_serious_fault_and_nothing_is_wider_than_its_window(
    browser: Any, page: Path, width: int, theme: str
) -> None:
    with opened(browser, page, width, theme) as seen:
        seen.page.locator(".drawing").first.focus()
        assert grave_faults(seen.page) == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.said == []
