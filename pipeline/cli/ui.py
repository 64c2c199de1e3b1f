"""``temper ui``: serves a table of runs with their key results, and the report of each run, or of
several side by side; the page of a run in progress updates itself."""

from collections.abc import Mapping
from itertools import islice

from pipeline.base.errors import TemperError
from pipeline.cli.reports import Looks, story_of
from pipeline.show.metrics import comparable_metrics, is_interval
from pipeline.show.report.headline import Headline, outcome
from pipeline.show.report.page import Page, render, render_runs
from pipeline.show.report.server import Server
from pipeline.show.results import of_run
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run, names_of_runs, newest_runs, read_run

MOST_RUNS = 200
"""The most runs on the page of all runs."""


class Site:
    """Makes the pages of a store when they are requested."""

    def __init__(self, store: Store):
        self._store = store
        self._looks: dict[str, Looks] = {}
        self._showed: dict[str, Headline | None] = {}

    def __call__(self, name: str) -> str | None:
        """The page of a run, of several with ``+`` between their names, or for an empty name that
        of all runs. ``None`` if there is no such run.

        Raises:
            TemperError: the store cannot be read, or is not there any more.
        """
        known = names_of_runs(self._store)
        if not known:
            self._store.require_still_there()
        if not name:
            newest, catalog = islice(newest_runs(self._store), MOST_RUNS), Catalog(self._store)
            shown = [(run, self._what_it_showed(run, catalog)) for run in newest]
            return render_runs(shown, self._store.url, len(known) - len(shown))
        if not {*name.split("+")} <= {*known}:
            return None
        runs = [read_run(self._store, one) for one in sorted({*name.split("+")})]
        looks = self._looks.setdefault(name, Looks(runs))
        return render(story_of(runs, Catalog(self._store), looks), Page(served=True))

    def _what_it_showed(self, run: Run, catalog: Catalog) -> Headline | None:
        """The headline of a run; of one that has ended, it is found once."""
        if run.name in self._showed:
            return self._showed[run.name]
        try:
            results = dict(of_run(run, catalog))
            showed = outcome(results, catalog) or _last_number(results)
        except TemperError:  # a damaged artifact has a page that says so
            showed = None
        if not run.is_in_progress():
            self._showed[run.name] = showed
        return showed


def _last_number(results: Mapping[str, Manifest]) -> Headline | None:
    """The first number of the last result that has one."""
    for name, made in reversed([*results.items()]):
        for metric in comparable_metrics([made]):
            value = made.metrics[metric]
            number = value["value"] if is_interval(value) else value
            return Headline("", "", (), f"{metric} of {name}", number)
    return None


def server(store: Store, port: int = 0) -> Server:
    """A server for the store's pages.

    Raises:
        TemperError: the port is taken.
    """
    try:
        return Server(Site(store), port)
    except OSError as error:
        reason = error.strerror or error
        raise TemperError(
            f"cannot listen on port {port} ({reason}); without --port, any that is free is taken"
        ) from error
