"""Earlier runs: which run a report shows by default, and what its results have been."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from pipeline.plan import variants
from pipeline.show.report.report_model import Past, ReportedStep, Story, manifest_of
from pipeline.show.views import Measures
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run, newest_runs

MOST_RUNS = 40
"""The most runs that a report looks at; each costs a request to the store."""
MOST_PASTS = 24
"""The most results whose history is shown."""


def run_to_show(store: Store) -> tuple[Run, Run] | None:
    """The run that a report shows by default, and the newest run.

    By default that is the newest run. If the newest run found all of its results in the cache, it
    is the run with the same results that made the most steps.

    Returns:
        The run to show and the newest run; ``None`` if no record can be read.
    """
    runs = list(islice(newest_runs(store), MOST_RUNS))
    if not runs:
        return None
    newest = runs[0]
    if newest.outcome != "done" or newest.count("done"):
        return newest, newest
    same = [run for run in runs if run.outcome == "done" and _results(run) == _results(newest)]
    return max(same, key=lambda run: run.count("done")), newest


def with_past(story: Story, catalog: Catalog) -> Story:
    """The story with earlier versions of its results."""
    return replace(story, past=list(islice(_past(story, catalog), MOST_PASTS)))


def _results(run: Run) -> dict[str, str | None]:
    """The attempt of each result, by the result's name."""
    made = {str(entry.get("fingerprint")): entry.get("attempt") for entry in run.steps}
    return {name: made.get(fingerprint) for name, fingerprint in run.roots.items()}


def _past(story: Story, catalog: Catalog) -> Iterator[Past]:
    """The history of each result over the runs of the same script, if the result has changed."""
    scripts = {_script(run) for run in story.runs}
    runs = [r for r in islice(newest_runs(catalog.store), MOST_RUNS) if _script(r) in scripts]
    for name, now in story.results.items():
        found: dict[str, ReportedStep] = {}
        for run in reversed(runs):
            made = _result(run, name, catalog)
            seen = {reported.id for reported in found.values()}
            if made is not None and made.step == now.step and made.attempt not in seen:
                views = [view for view in now.views if isinstance(view, Measures)]
                found[run.name] = ReportedStep(
                    made.attempt, made.step, "done", manifest=made, views=views
                )
        if len(found) > 1:
            yield Past(name, found, _settings(found, catalog))


def _settings(
    found: Mapping[str, ReportedStep], catalog: Catalog
) -> Mapping[str, Mapping[str, Any]]:
    """The settings in which artifacts or their ancestors differ; the values by run."""
    made = {reported.id: reported.manifest for reported in found.values() if reported.manifest}
    nodes = variants.with_absent(variants.of_manifests(catalog.with_all_above(made.values())))
    return {
        setting: {run: of[reported.id] for run, reported in found.items() if reported.id in of}
        for setting, of in variants.parameters(nodes, list(made)).items()
    }


def _result(run: Run, name: str, catalog: Catalog) -> Manifest | None:
    """The artifact that a run had under the name of a result."""
    entries = (entry for entry in run.steps if entry.get("fingerprint") == run.roots.get(name))
    return next((manifest_of(entry, catalog) for entry in entries), None)


def _script(run: Run) -> str:
    return run.command[1] if len(run.command) > 1 else ""
