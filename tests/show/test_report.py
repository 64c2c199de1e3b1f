"""The report as its reader meets it: opened in a real browser, in both themes, on a phone."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, grave_faults, numbers_of, opened
from report_steps import HOSTILE, explode, hostile, measure, prepare
from rich.console import Console
from typer.testing import CliRunner

from pipeline import Store, run
from pipeline.cli import app
from pipeline.running.session import RunFailed
from pipeline.show.report.page import markdown, render
from pipeline.show.report.report_model import story_of_runs
from pipeline.store.catalog import Catalog
from pipeline.store.runs import names_of_runs, read_runs
from steps.report import report

pytestmark = pytest.mark.usefixtures("workers_in_module")

SECTIONS = ("results", "sweep", "steps", "curves", "samples", "data", "notes", "configuration",
            "provenance")  # fmt: skip
BETAS = (0.05, 0.1, 0.5)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A sweep with a baseline, and a run of which a step failed."""
    store = Store(str(tmp_path_factory.mktemp("report") / "store"))
    data = prepare()
    sweep = {f"beta={beta}": measure(data, beta=beta) for beta in BETAS}
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere)
        run({**sweep, "report": report(dict(sweep), title="All betas")}, store, console=console)
        with pytest.raises(RunFailed):
            run(
                {
                    "<i>worst</i>": hostile(data, HOSTILE, note=HOSTILE["script"]),
                    HOSTILE["right to left"]: explode(data, HOSTILE["html"] + HOSTILE["ansi"]),
                },
                store,
                console=console,
            )
    return store


@pytest.fixture(scope="module")
def pages(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of each of the two runs, and of both, as ``temper report`` writes it."""
    folder = tmp_path_factory.mktemp("pages")
    names = names_of_runs(store)
    asked = {"sweep": names[:1], "hostile": names[1:], "both": names}
    for name, runs in asked.items():
        arguments = ["report", *runs, "-o", str(folder / f"{name}.html"), "--store", store.url]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (result.output, result.exception)
    return {name: folder / f"{name}.html" for name in asked}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width", "theme"),
    [("sweep", 400, "dark"), ("hostile", 400, "light"), ("both", 1200, "light")],
)
def test_a_report_loads_nothing_says_no_error_fits_its_window_and_keeps_nobody_out(
    browser: Any, pages: dict[str, Path], name: str, width: int, theme: str
) -> None:
    with opened(browser, pages[name], width, theme) as seen:
        assert seen.asked == [pages[name].as_uri()]
        assert seen.said == []
        assert seen.page.title().endswith("report")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (theme == "dark")
        assert grave_faults(seen.page) == []


@pytest.mark.slow
def test_every_section_is_there_and_linked(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["sweep"]) as seen:
        for section in SECTIONS:
            assert seen.page.locator(f"section#{section}").is_visible(), section
            assert seen.page.locator(f"nav a[href='#{section}']").count() == 1, section


@pytest.mark.slow
def test_numbers_are_those_of_the_manifests(
    browser: Any, pages: dict[str, Path], store: Store
) -> None:
    expected = {}
    for made in Catalog(store).history("measure"):
        arguments: Any = made.recipe
        name, accuracy = f"beta={arguments['arguments']['beta']}", made.metrics["accuracy"]
        expected[name, "loss"] = [made.metrics["loss"]]
        expected[name, "accuracy"] = [accuracy["value"], accuracy["low"], accuracy["high"]]
    with opened(browser, pages["sweep"]) as seen:
        assert numbers_of(seen.page, "measure") == expected


@pytest.mark.slow
def test_a_sweep_shows_each_metric_over_the_setting_that_differs(
    browser: Any, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["sweep"]) as seen:
        sweep = seen.page.locator("#sweep")
        assert sweep.locator("h3").all_inner_texts() == ["By beta"]
        assert sweep.locator("figcaption").all_inner_texts() == ["loss", "accuracy"]
        ticks = sweep.locator("figure").first.locator("svg text").all_text_contents()
        assert {"0.05", "0.1", "0.5"} <= set(ticks)
        legend = seen.page.locator("#curves .legend").first.locator("li").all_inner_texts()
        assert legend == [f"beta={beta}" for beta in BETAS]


@pytest.mark.slow
def test_a_box_shows_its_steps_key_inputs_and_settings_by_pointer_and_by_keyboard(
    browser: Any, pages: dict[str, Path], store: Store
) -> None:
    made = Catalog(store).history("measure")[0]
    with opened(browser, pages["sweep"]) as seen:
        inspector = seen.page.locator("#inspector")
        seen.page.locator(".dag a", has_text="measure").first.hover()
        for text in (made.key, "prepare", "beta", "0.05"):
            assert text in inspector.inner_text()
        boxes = seen.page.locator(".dag a")
        boxes.first.focus()
        assert "prepare" in inspector.locator("h3").inner_text()
        seen.page.keyboard.press("Tab")
        assert "measure" in inspector.locator("h3").inner_text()
        boxes.first.click()
        assert "prepare" in inspector.locator("h3").inner_text()


@pytest.mark.slow
def test_answers_to_one_prompt_stand_side_by_side(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["sweep"]) as seen:
        sample = seen.page.locator(".sample").nth(1)
        assert sample.locator(".prompt").inner_text() == "What is 1?"
        assert sample.locator("figcaption").all_inner_texts() == [f"beta={b}" for b in BETAS]
        assert sample.locator("blockquote").all_inner_texts() == [str(1 + b) for b in BETAS]
        tops = {box["y"] for box in (f.bounding_box() for f in sample.locator("figure").all())}
        assert len(tops) == 1


@pytest.mark.slow
def test_what_anybody_wrote_is_shown_as_text(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["hostile"]) as seen:
        page = seen.page
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert "owned" not in page.title()
        assert page.locator("img, iframe, object, video, [onerror], [onfocus]").count() == 0
        assert page.locator("script").count() == 1
        assert page.locator("a:not([href^='#'])").count() == 0
        text = page.locator("body").inner_text()
        for hidden in ("\x1b", "\u202e", "\u2066", "\ud83d", "\x07"):
            assert hidden not in text
        assert HOSTILE["html"] in text
        assert "{{ 7 * 7 }}" in text
        assert "␛[31mred" in text
        assert "⟨U+202E⟩evil" in text
        assert "<i>worst</i>" in text
        answers = page.locator(".sample", has=page.locator(".prompt", has_text="</style>"))
        assert HOSTILE["script"] in answers.locator("blockquote").first.inner_text()


@pytest.mark.slow
def test_a_failed_step_is_told_first_and_what_it_said(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["hostile"]) as seen:
        assert HOSTILE["html"] in seen.page.locator("header .headline").first.inner_text()
        assert seen.page.locator(".dag a.failed").count() == 1
        assert "failed" in seen.page.locator("header").inner_text()


@pytest.mark.slow
def test_the_report_step_tells_of_its_inputs_and_all_they_were_made_from(
    browser: Any, store: Store
) -> None:
    (made,) = Catalog(store).history("report")
    assert list(made.files) == ["report.html"]
    with opened(browser, Path(store.content_path(made)) / "report.html") as seen:
        assert seen.said == []
        assert seen.page.locator("h1").inner_text() == "All betas"
        assert seen.page.locator(".dag a").count() == 4
        assert seen.page.locator("#sweep figure").count() == 2


def test_equal_stories_give_equal_bytes(store: Store) -> None:
    runs = read_runs(store)[:1]
    first, second = (render(story_of_runs(runs, Catalog(store))) for _ in range(2))
    assert first == second


def test_markdown_is_rendered_without_html_links_and_images() -> None:
    shown = markdown(
        "## T\n\n**b** <i>x</i> ![a](http://b/c) [d](http://e) <http://f>\n\n[g]: http://h"
    )
    assert "<strong>b</strong>" in shown
    assert "<h4>T</h4>" in shown
    for tag in ("<i", "<img", "<a", "href", "src"):
        assert tag not in shown
