"""``temper ui``: serves the report of every run; the page of a run in progress updates itself."""

from itertools import islice

from pipeline.base.errors import TemperError
from pipeline.cli.reports import Looks, story_of
from pipeline.show.report.page import Page, render, render_runs
from pipeline.show.report.server import Server
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.runs import names_of_runs, newest_runs, read_run

MOST_RUNS = 200
"""The most runs on the page of all runs."""


class Site:
    """Makes the pages of a store when they are requested."""

    def __init__(self, store: Store):
        self._store = store
        self._looks: dict[str, Looks] = {}

    def __call__(self, name: str) -> str | None:
        """The page of a run; for an empty name the page of all runs. ``None`` if there is no such
        run.

        Raises:
            TemperError: the store cannot be read, or is not there any more.
        """
        known = names_of_runs(self._store)
        if not known:
            self._store.require_still_there()
        if not name:
            newest = list(islice(newest_runs(self._store), MOST_RUNS))
            return render_runs(newest, self._store.url, len(known) - len(newest))
        if name not in known:
            return None
        run = read_run(self._store, name)
        looks = self._looks.setdefault(name, Looks([run]))
        return render(story_of([run], Catalog(self._store), looks), Page(served=True))


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
