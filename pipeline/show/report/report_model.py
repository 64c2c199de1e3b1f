"""The content of a report: steps, results, the settings in which they differ, and their views.

A story is built from run records, or from artifacts and all of their ancestors. A step that two
runs share occurs once. Beside it stand earlier versions of its results
(:mod:`pipeline.show.report.earlier_runs`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline.base.redaction import shown
from pipeline.plan import variants
from pipeline.show.artifact_handle import Made
from pipeline.show.report.wording import when
from pipeline.show.step_progress import progress_of
from pipeline.show.views import View, unfinished_views, views_of
from pipeline.store.activity import leases
from pipeline.store.catalog import Catalog
from pipeline.store.kinds import known_kind
from pipeline.store.manifest import Manifest
from pipeline.store.names.tags import tags_of

if TYPE_CHECKING:
    from pipeline.store.runs import Run

READERS = 8
Look = Callable[[Made], Sequence[View]]
"""Makes the views of an artifact."""


def by_kind(made: Made) -> Sequence[View]:
    """The views that the artifact's kind defines, or default views if the kind is unknown here."""
    return views_of(made, known_kind)


@dataclass(frozen=True)
class ReportedStep:
    """One step of the story.

    Attributes:
        label: distinguishes the step from others of the same name.
        manifest: its artifact; ``None`` if it made none, or the artifact has been deleted.
        inputs: ids of the steps whose outputs are its inputs.
        given: the same ids by argument, as far as the manifest records them.
        place: where it ran: the launcher and the resources that it requested.
        lost: whether its data is missing or damaged, so that it has no views.
        tags: the names that users gave to its artifact.
    """

    id: str
    step: str
    state: str
    seconds: float = 0.0
    label: str = ""
    message: str = ""
    key: str = ""
    place: str = ""
    manifest: Manifest | None = None
    inputs: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    views: Sequence[View] = ()
    lost: bool = False
    tags: Sequence[str] = ()

    @property
    def name(self) -> str:
        return f"{self.step} ({self.label})" if self.label else self.step


@dataclass(frozen=True)
class Past:
    """The artifacts that several runs made for one result, oldest first.

    Attributes:
        settings: the values of each setting in which they differ, by run.
    """

    result: str
    by_run: Mapping[str, ReportedStep]
    settings: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Story:
    """
    Attributes:
        results: the results that the runs were asked for, by name.
        parameters: the values of each setting that varies by itself among the results, by result.
        families: the results that differ in seeds alone, by names.
        past: earlier versions of the results, from other runs.
    """

    title: str
    store: str
    runs: Sequence["Run"]
    steps: Sequence[ReportedStep]
    results: Mapping[str, ReportedStep]
    parameters: Mapping[str, Mapping[str, Any]]
    families: Sequence[Sequence[str]] = ()
    past: Sequence[Past] = ()

    @property
    def is_under_way(self) -> bool:
        return any(run.is_in_progress() for run in self.runs)

    def count(self, *states: str) -> int:
        return sum(reported.state in states for reported in self.steps)


def story_of_runs(runs: Sequence["Run"], catalog: Catalog, look: Look | None = by_kind) -> Story:
    """The story of runs, oldest first.

    Args:
        look: makes the views of an artifact; ``None`` for a story without views.

    Raises:
        TemperError: the store cannot be read.
    """
    steps: dict[str, ReportedStep] = {}
    roots: dict[str, dict[str, str]] = {}  # run: name of a result: id
    for run in runs:
        ids: dict[str, str] = {}
        at_work = _keys_at_work(run, catalog)
        for entry in run.steps:
            reported = _reported_step(entry, ids, catalog)
            key = at_work.get(reported.step)
            if key and not reported.manifest and reported.key in ("", key):
                reported = _at_work(reported, key, catalog, with_views=look is not None)
            ids[str(entry.get("fingerprint"))] = reported.id
            before = steps.get(reported.id)
            if before is None or before.state == "cached":  # prefer the run that made it
                steps[reported.id] = reported
        roots[run.name] = {name: ids[f] for name, f in run.roots.items() if f in ids}
    return _story(_title(runs), runs, steps, _named_apart(roots, _apart(runs)), catalog, look)


def story_of_artifacts(
    results: Mapping[str, Manifest], catalog: Catalog, title: str, look: Look = by_kind
) -> Story:
    """The story of artifacts and of all their ancestors that the store still has."""
    steps = {
        made.attempt: _of_manifest({"state": "done"}, made, catalog, _inputs(made, catalog))
        for made in catalog.with_all_above(results.values())
    }
    roots = {name: manifest.attempt for name, manifest in results.items()}
    return _story(title, (), steps, roots, catalog, look)


def story_of_results(results: Mapping[str, Manifest], catalog: Catalog) -> Story:
    """The story of artifacts alone, without those above them."""
    steps = {m.attempt: _of_manifest({"state": "done"}, m, catalog, ()) for m in results.values()}
    roots = {name: manifest.attempt for name, manifest in results.items()}
    return _story("", (), steps, roots, catalog, by_kind)


def _story(
    title: str,
    runs: Sequence["Run"],
    steps: Mapping[str, ReportedStep],
    roots: Mapping[str, str],
    catalog: Catalog,
    look: Look | None,
) -> Story:
    nodes = variants.of_manifests(
        reported.manifest for reported in steps.values() if reported.manifest
    )
    labels = variants.names(nodes)
    tags = tags_of(catalog.store)
    asked = {id: name for name, id in reversed(list(roots.items()))}
    made_ids = [id for id in dict.fromkeys(roots.values()) if id in nodes]
    parameters = variants.effective(nodes, made_ids)

    def complete(reported: ReportedStep) -> ReportedStep:
        own = reported.label if len(runs) == 1 else ""  # these are unique within a run
        label = own or labels.get(reported.id, reported.label)
        alone = sum(other.step == reported.step for other in steps.values()) == 1
        if not alone and reported.id in asked:
            label = asked[reported.id]
        views = reported.views
        if reported.manifest is not None and not reported.lost and look is not None:
            views = look(Made(reported.manifest, catalog.store))
        node = nodes.get(reported.id, variants.Node(reported.step, {}, {}))
        made = reported.manifest
        return replace(
            reported,
            label=label,
            views=views,
            settings=node.settings,
            given=node.inputs,
            tags=tags.get((made.step, made.attempt), ()) if made else (),
        )

    with ThreadPoolExecutor(READERS) as pool:
        completed = dict(zip(steps, pool.map(complete, steps.values()), strict=True))
    return Story(
        title=title or "Temper",
        store=shown(catalog.store.url),
        runs=runs,
        steps=list(completed.values()),
        results={name: completed[id] for name, id in roots.items()},
        parameters={
            setting: {name: of[id] for name, id in roots.items() if id in of}
            for setting, of in parameters.items()
        },
        families=[[asked[id] for id in of] for of in variants.families(nodes, made_ids)],
    )


def _reported_step(
    entry: Mapping[str, Any], ids: Mapping[str, str], catalog: Catalog
) -> ReportedStep:
    """A step, from its entry in a run record."""
    inputs = tuple(_recorded_inputs(entry, ids))
    made = manifest_of(entry, catalog)
    if made is not None:
        return _of_manifest(entry, made, catalog, inputs or _inputs(made, catalog))
    return ReportedStep(
        id=str(entry.get("fingerprint")),
        step=entry["step"],
        state=str(entry.get("state") or ""),
        seconds=entry["seconds"],
        label=str(entry.get("label") or ""),
        message=str(entry.get("message") or ""),
        key=entry.get("key") or "",
        place=str(entry.get("place") or ""),
        inputs=inputs,
    )


def _keys_at_work(run: "Run", catalog: Catalog) -> dict[str, str]:
    """The keys that a run holds leases on, by step: what it makes now."""
    if run.outcome != "running":
        return {}
    held = (lease for lease in leases(catalog.store) if lease.is_held)
    return {
        lease.step: lease.key for lease in held if lease.holder and lease.holder.run == run.name
    }


def _at_work(reported: ReportedStep, key: str, catalog: Catalog, with_views: bool) -> ReportedStep:
    """A step that a run makes now, with its progress and the curves that it has logged."""
    views = unfinished_views(catalog.store, reported.step, key) if with_views else ()
    message = progress_of(catalog.store, reported.step, key)
    return replace(reported, state="running", key=key, message=message, views=views)


def _of_manifest(
    entry: Mapping[str, Any], made: Manifest, catalog: Catalog, inputs: tuple[str, ...]
) -> ReportedStep:
    return ReportedStep(
        id=made.attempt,
        step=made.step,
        state=str(entry.get("state") or ""),
        seconds=made.seconds,
        label=str(entry.get("label") or ""),
        message=str(entry.get("message") or ""),
        key=made.key,
        place=str(entry.get("place") or made.provenance.get("launcher") or ""),
        manifest=made,
        inputs=inputs,
        lost=catalog.loss(made) is not None,
    )


def manifest_of(entry: Mapping[str, Any], catalog: Catalog) -> Manifest | None:
    """The artifact of a step of a run. If its key was made again since: the one that the run had,
    or the latest if that one is unknown."""
    attempt, key = entry.get("attempt"), entry.get("key")
    history = [made for made in catalog.history(entry["step"]) if made.key == key]
    exact = [made for made in history if made.attempt == attempt]
    return (exact or history[-1:] or [None])[0] if key and attempt else None


def _inputs(made: Manifest, catalog: Catalog) -> tuple[str, ...]:
    """The attempts of an artifact's inputs; the latest one of each key."""
    above = (catalog.latest(entry.step, entry.key) for entry in made.inputs)
    return tuple(dict.fromkeys(manifest.attempt for manifest in above if manifest is not None))


def _recorded_inputs(entry: Mapping[str, Any], ids: Mapping[str, str]) -> Iterator[str]:
    inputs = entry.get("inputs")
    for fingerprint in inputs if isinstance(inputs, list) else ():
        if fingerprint in ids:
            yield ids[fingerprint]


def _apart(runs: Sequence["Run"]) -> dict[str, str]:
    """What tells runs apart, by their names: the settings as typed, or the names."""
    typed = variants.typed_apart([run.command for run in runs])
    labels = {run.name: variants.label(of) for run, of in zip(runs, typed, strict=True)}
    is_clear = len({*labels.values()}) == len(runs)
    return labels if is_clear else {run.name: f"of {run.name}" for run in runs}


def _named_apart(
    roots: Mapping[str, Mapping[str, str]], apart: Mapping[str, str]
) -> dict[str, str]:
    """The results of all runs by name. If runs use a name for different steps, what tells the runs
    apart is added."""
    meant: dict[str, set[str]] = {}
    for of_run in roots.values():
        for name, id in of_run.items():
            meant.setdefault(name, set()).add(id)
    return {
        name if len(meant[name]) == 1 else f"{name} {apart[run]}".strip(): id
        for run, of_run in roots.items()
        for name, id in of_run.items()
    }


def _title(runs: Sequence["Run"]) -> str:
    """What the runs are about, and when the newest one began."""
    experiments = " and ".join(dict.fromkeys(run.title or run.experiment for run in runs))
    return f"{experiments}, {when(runs[-1].name)} UTC"


def steps_with(
    steps: Iterable[ReportedStep], kind: type[View]
) -> Iterator[tuple[ReportedStep, Any]]:
    """Every view of one type, with its step."""
    for reported in steps:
        for view in reported.views:
            if isinstance(view, kind):
                yield reported, view
