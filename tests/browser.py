"""A real headless Chromium, if the machine has one; it may reach nothing but files."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


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

    found = shutil.which("chromium") or shutil.which("chromium-browser")
    found = found or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        path = found or (own if os.path.exists(own) else None)
        if path is None:
            pytest.skip("there is no Chromium on this machine")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, file: Path, width: int = 1200, theme: str = "light") -> Iterator[Opened]:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
    )
    seen = Opened(context.new_page())
    seen.page.on("console", lambda message: seen.said.append(message.text))
    seen.page.on("pageerror", lambda error: seen.said.append(str(error)))
    seen.page.on("request", lambda request: seen.asked.append(request.url))
    seen.page.goto(file.as_uri())
    yield seen
    context.close()


def grave_faults(page: Any) -> list[tuple[str, str]]:
    """What axe-core finds that keeps people out, with everything unfolded: rule and element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.locator(".dag a").first.focus()
    found = axe.Axe().run(page).response["violations"]
    return [
        (fault["id"], fault["nodes"][0]["html"][:200])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def numbers_of(page: Any, step: str) -> dict[tuple[str, str], list[float]]:
    """Every number that a report's table of results of a step holds, with all its digits: by
    result and metric, its value and, where it has one, the ends of its interval."""
    read = """table => {
        const names = [...table.querySelectorAll('thead th')].slice(1).map(h => h.innerText);
        return [...table.querySelectorAll('tbody tr')].flatMap(row =>
            [...row.querySelectorAll('td')].map((cell, i) => [
                row.querySelector('th').innerText, names[i],
                [...cell.querySelectorAll('data')].map(d => Number(d.value))]));
    }"""
    table = page.locator("table.results", has=page.locator(f"caption:text-is('{step}')"))
    wide = table.locator("thead th").first.inner_text() == "result"
    cells = table.evaluate(read)
    return {
        (row, column) if wide else (column, row): found for row, column, found in cells if found
    }
