"""The pages of the documentation: links lead somewhere, every page is in the site's menu, and what
pages and the reference say of names agrees with the code."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import reference
import yaml
from places import REPOSITORY
from sentences import long_sentences

from steps import kinds
from steps.train_dpo import train_dpo

DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BESIDE_CODE = [REPOSITORY / name for name in reference.FROM_ABOVE.values()]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them on GitHub and on the site."""
    spoken = (re.sub(r"[^\w\- ]", "", heading) for heading in HEADING.findall(prose(page)))
    return {heading.strip().lower().replace(" ", "-") for heading in spoken}


def broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            yield f"{link}: no such file"
        elif anchor and anchor not in anchors(file):
            yield f"{link}: no such heading"


def test_readme_and_sentences_are_short() -> None:
    texts = [page.read_text("utf-8") for page in (REPOSITORY / "README.md", *PAGES)]
    assert len(texts[0].split()) <= 500
    assert [long for text in texts for long in long_sentences(text)] == []


@pytest.mark.parametrize("page", [*BESIDE_CODE, *PAGES], ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_every_page_is_in_the_menu_of_the_site_once() -> None:
    menu = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text("utf-8"))["nav"]
    listed = [
        address for section in menu for entry in section.popitem()[1] for address in entry.values()
    ]
    assert len(listed) == len(set(listed))
    written_when_built = {*reference.FROM_ABOVE, *reference_pages()}
    assert set(listed) == {page.relative_to(DOCS).as_posix() for page in PAGES} | written_when_built


def test_every_extra_is_named_on_the_page_of_the_command_line() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {*project["optional-dependencies"]} - {"dev", "docs"}
    page = (DOCS / "command_line.md").read_text("utf-8").partition("## Recipes")[0]
    assert {name for name in re.findall(r"`([\w-]+)`", page) if name in extras} == extras


@pytest.mark.parametrize("page", ["from_trl.md", "from_axolotl.md"])
def test_names_of_other_tools_mean_what_the_command_line_suggests(page: str) -> None:
    suggested = yaml.safe_load((REPOSITORY / "experiments" / "other_names.yaml").read_text("utf-8"))
    section = (DOCS / "howto" / page).read_text("utf-8").partition("## Names of settings")[2]
    lines = section.partition("\n## ")[0].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| ") and "`" in line]
    assert len(rows) > 10
    for *others, ours, _ in rows:
        for theirs in re.findall(r"`(\w+)`", " ".join(others)):
            assert f"`{suggested[theirs].partition(' | ')[0]}`" == ours.strip(), theirs


reference_pages = cache(reference.pages)


def test_the_reference_has_every_step_with_its_parameters_and_every_kind() -> None:
    pages = reference_pages()
    for name in ("train_dpo", "load_preferences", "judge"):
        assert f"\n## {name}\n" in pages["reference/steps.md"]
    section = pages["reference/steps.md"].partition("\n## train_dpo\n")[2].partition("\n## ")[0]
    for parameter in train_dpo.signature.parameters:
        assert f"| `{parameter}` |" in section
    for kind in (kinds.Preferences, kinds.Rollouts):
        assert f"\n## {kind.__name__}\n" in pages["reference/kinds.md"]


def test_links_within_the_reference_lead_to_its_headings() -> None:
    pages = reference_pages()
    headings = {
        page.removeprefix("reference/"): {h.lower() for h in HEADING.findall(text)}
        for page, text in pages.items()
    }
    for text in pages.values():
        for page, anchor in re.findall(r"\]\((\w+\.md)#(\w+)\)", text):
            assert anchor in headings[page], f"{page}#{anchor}"


def test_the_errors_are_those_of_the_code() -> None:
    page = reference_pages()["reference/errors.md"]
    assert "| `RunFailed` | `TemperError` | Some steps failed;" in page
    assert page.count("| `TemperError` |\n") > 200
    assert "| put @step above a `def` | `TemperError` |" in page
