"""The report as one HTML file that loads nothing.

Jinja's autoescaping and :func:`clean` make every value safe to show. Markdown is rendered
without HTML, links and images. The page's ``Content-Security-Policy`` refuses every request
and every script but its own. The page is complete without its script, which adds interaction: look
up values, sort, search, save a table.
"""

import base64
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.base.redaction import shown
from pipeline.base.text import clean
from pipeline.show.report import costs, figures, graph, trends
from pipeline.show.report.headline import Headline, headline
from pipeline.show.report.report_model import ReportedStep, Story, steps_with
from pipeline.show.report.scoreboard import group_of, groups_over_seeds, result_groups
from pipeline.show.report.sweeps import effects
from pipeline.show.report.texts import samples
from pipeline.show.report.wording import filters, markdown
from pipeline.show.views import Note, Table
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run

__all__ = ["Page", "markdown", "render"]

FOLDER = Path(__file__).parent
LOADS_NOTHING = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; script-src 'sha256-{}'"
)


@dataclass(frozen=True)
class Page:
    """What a page shows besides the story.

    Attributes:
        made_at: the time in its footer. Without a time, equal stories render to equal bytes.
        remark: a sentence below the title, for example which other runs there are.
        served: whether ``temper ui`` serves the page. A served page links to the page of all runs,
            and reloads itself while a run is in progress.
    """

    made_at: str = ""
    remark: str = ""
    served: bool = False


def render(story: Story, page: Page = Page()) -> str:
    groups = list(result_groups(story))
    return template("page.html.j2").render(
        **frame(page.served),
        live=page.served and story.is_under_way,
        story=story,
        page=page,
        headline=headline(story),
        drawing=graph.draw({reported.id: reported.inputs for reported in story.steps}),
        numbers={reported.id: index for index, reported in enumerate(story.steps, start=1)},
        by_id={reported.id: reported for reported in story.steps},
        box=graph.BOX,
        groups=groups,
        means=list(groups_over_seeds(story)),
        effects=list(effects(story, groups)),
        curves=trends.curves(story, "Curves"),
        more_results=trends.curves(story, "Results"),
        samples=list(samples(story)),
        tables=list(steps_with(story.steps, Table)),
        histograms=list(trends.histograms(story)),
        past=[(past, group_of(past.result, past.by_run)) for past in story.past],
        has_costs=any(str(costs.cost_of(reported)) for reported in story.steps),
        notes=list(steps_with(story.steps, Note)),
        versions=_versions(story.steps),
        costs=costs,
    )


def render_runs(runs: Sequence[tuple[Run, Headline | None]], store: str, more: int = 0) -> str:
    """The page of all runs, with a link to the page of each.

    Args:
        runs: newest first, with what they showed.
        more: the number of older runs that are not listed.
    """
    return template("runs.html.j2").render(
        **frame(served=True),
        live=any(run.is_in_progress() for run, _ in runs),
        runs=runs,
        more=more,
        store=shown(store),
    )


def frame(served: bool = False) -> dict[str, Any]:
    """What every page has: style sheet, script, and the policy that allows only these two."""
    style, script = ((FOLDER / name).read_text("utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = LOADS_NOTHING.format(digest) + ("; connect-src 'self'" if served else "")
    return {"style": Markup(style), "script": Markup(script), "policy": Markup(policy)}


@functools.cache
def template(name: str) -> Any:
    """A template of this folder; it escapes every value."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    environment.filters |= filters() | {"key": figures.key}
    environment.globals |= {"told_apart": figures.MOST_TOLD_APART}
    return environment.get_template(name)


# --- provenance ----------------------------------------------------------------------------------


def _versions(steps: Sequence[ReportedStep]) -> dict[str, list[str]]:
    """Commit, host, hardware and package versions of the artifacts: all values of each."""
    found: dict[str, dict[str, None]] = {}
    for reported in steps:
        facts = [*_facts(reported.manifest), ("hardware", costs.hardware_of(reported))]
        for name, value in facts:
            if value:
                found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _facts(manifest: Manifest | None) -> Iterable[tuple[str, str]]:
    if manifest is None:
        return
    provenance = manifest.provenance
    for name in ("commit", "host", "python"):
        yield name, str(provenance.get(name) or "")
    if "dirty" in provenance:
        yield "uncommitted changes", str(provenance["dirty"] or "none")
    packages = provenance.get("packages")
    for name, version in (packages if isinstance(packages, Mapping) else {}).items():
        yield str(name), str(version)
