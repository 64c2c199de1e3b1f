"""The runs and views that ``temper report`` and ``temper ui`` show."""

from collections.abc import Iterable, Sequence

from pipeline.base.errors import TemperError
from pipeline.cli import step_lookup
from pipeline.dag.artifact import Kind
from pipeline.show.artifact_handle import Made
from pipeline.show.report.earlier_runs import run_to_show, with_past
from pipeline.show.report.report_model import Story, story_of_runs
from pipeline.show.views import View, views_of
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run, names_of_runs, one_run, read_run


class Looks:
    """Makes the views of artifacts with the kinds that a project declares, once for each artifact.

    Attributes:
        unknown: why an artifact's kind could not be imported, by the artifact's name.
    """

    def __init__(self, runs: Iterable[Run]):
        self._project = step_lookup.project_of(runs)
        self._seen: dict[str, Sequence[View]] = {}
        self.unknown: dict[str, str] = {}

    def __call__(self, made: Made) -> Sequence[View]:
        attempt = made.manifest.attempt
        if attempt not in self._seen:
            self._seen[attempt] = views_of(made, self._kind_of)
        return self._seen[attempt]

    def _kind_of(self, manifest: Manifest) -> Kind:
        try:
            return step_lookup.kind_in(self._project, manifest)
        except step_lookup.NotImportable as error:
            self.unknown[manifest.name] = str(error)
            raise


def chosen_runs(store: Store, names: Sequence[str]) -> tuple[list[Run], str]:
    """The named runs, oldest first, or the default run; and a remark on that choice.

    Raises:
        TemperError: there is no run, or a record cannot be read.
    """
    known = names_of_runs(store)
    if not known:
        raise TemperError(f"no run is on record in {store.url}; set --store or TEMPER_STORE")
    if names:
        return [read_run(store, name) for name in sorted({one_run(known, n) for n in names})], ""
    found = run_to_show(store)
    if found is None:
        return [read_run(store, known[-1])], ""
    run, newest = found
    if run.name == newest.name:
        return [run], ""
    remark = f"The newest run with these results, {newest.name}, found all of them made already."
    return [run], remark


def story_of(runs: Sequence[Run], catalog: Catalog, looks: Looks) -> Story:
    """The story of runs, with earlier versions of their results."""
    return with_past(story_of_runs(runs, catalog, looks), catalog)
