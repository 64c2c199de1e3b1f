"""A real headless Chromium, if the machine has one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from waiting import HANGS_SECONDS

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Of a browser; the first has the same engine and no windows, and a page in it costs a third."""

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
HANGS = 1000 * HANGS_SECONDS
"""In milliseconds."""


@dataclass
class Opened:
    """A page, and what happened while it was open."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser object; skips where there is no Chromium."""
    pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        path = found or (own if os.path.exists(own) else None)
        if path is None:
            pytest.skip("there is no Chromium on this machine")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=HANGS)
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Any, page: Path | str, width: int = 1200, theme: str = "light", scripts: bool = True
) -> Iterator[Opened]:
    """A file, or what is at a URL, as a reader sees it."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce",
        java_script_enabled=scripts,
    )  # fmt: skip
    context.set_default_timeout(HANGS)
    seen = Opened(context.new_page())
    seen.page.on("console", lambda message: seen.said.append(message.text))
    seen.page.on("pageerror", lambda error: seen.said.append(str(error)))
    seen.page.on("request", lambda request: seen.asked.append(request.url))
    seen.page.goto(page if isinstance(page, str) else page.as_uri())
    yield seen
    context.close()


def grave_faults(page: Any, colours: bool = True) -> list[tuple[str, str]]:
    """What axe-core finds that keeps people out, with everything unfolded: rule and element. To
    hold the ``colours`` of all text against what is behind it takes three quarters of its time."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for box in page.locator(".dag a").all()[:1]:
        box.focus()
    options = {"resultTypes": ["violations"], "rules": {"color-contrast": {"enabled": colours}}}
    found = axe.Axe().run(page, options=options).response["violations"]
    return [
        (fault["id"], fault["nodes"][0]["html"][:200])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def numbers_of(page: Any, step: str) -> dict[tuple[str, str], list[float]]:
    """Every number that a report's table of results of a step holds; see :func:`cells_of`."""
    return {cell: found for cell, found in cells_of(page, step).items() if found}


def cells_of(page: Any, step: str) -> dict[tuple[str, str], list[float]]:
    """What a report's table of results of a step holds, with all its digits: by result and metric,
    its value and, where it has one, the ends of its interval; nothing where it has no value. A
    metric that has a title is known by its own name, which stands below that."""
    read = """table => {
        const name = heading => (heading.querySelector('.raw') ?? heading).innerText;
        const names = [...table.querySelectorAll('thead th')].slice(1).map(name);
        return [...table.querySelectorAll('tbody tr')].flatMap(row =>
            [...row.querySelectorAll('td')].map((cell, i) => [
                name(row.querySelector('th')), names[i],
                [...cell.querySelectorAll('data')].map(d => Number(d.value))]));
    }"""
    table = page.locator("table.results", has=page.locator(f"caption:text-is('{step}')"))
    wide = table.locator("thead th").first.inner_text() == "result"
    cells = table.evaluate(read)
    return {(row, column) if wide else (column, row): found for row, column, found in cells}
