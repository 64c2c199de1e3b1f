"""What a report tells: steps, results, settings in which they differ, and what there is to see.

A story is of runs, by their records, or of artifacts and all they were made from. Two runs that
share a step tell of it once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline import variants
from pipeline.canonical import resolve_reference
from pipeline.catalog import Catalog
from pipeline.manifest import Manifest
from pipeline.record import shown
from pipeline.views import Made, View, views_of

if TYPE_CHECKING:
    from pipeline.cli.runs import Run

READERS = 8
Resolve = Callable[[str], Any]


@dataclass(frozen=True)
class Told:
    """One step of the story.

    Attributes:
        label: what tells it apart from others of its name.
        manifest: what it made; ``None`` if it made nothing, or that has been collected.
        inputs: ids of the steps whose outputs it was given.
        place: where it ran: the launcher, and what it asked for.
        lost: whether its data is gone, and nothing of it can be shown.
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
    settings: Mapping[str, Any] = field(default_factory=dict)
    views: Sequence[View] = ()
    lost: bool = False

    @property
    def name(self) -> str:
        return f"{self.step} ({self.label})" if self.label else self.step


@dataclass(frozen=True)
class Story:
    """
    Attributes:
        results: what was asked for, by name.
        parameters: by the name of each setting in which results differ, its values by result.
    """

    title: str
    store: str
    runs: Sequence["Run"]
    steps: Sequence[Told]
    results: Mapping[str, Told]
    parameters: Mapping[str, Mapping[str, Any]]

    def count(self, *states: str) -> int:
        return sum(told.state in states for told in self.steps)


def story_of_runs(
    runs: Sequence["Run"],
    catalog: Catalog,
    resolve: Resolve = resolve_reference,
    with_views: bool = True,
) -> Story:
    """The story of runs, oldest first.

    Args:
        resolve: imports what ``module:name`` names, to ask kinds for their views.
        with_views: look into artifacts' files; what else is told, manifests say.

    Raises:
        TemperError: the store cannot be read.
    """
    steps: dict[str, Told] = {}
    roots: dict[str, dict[str, str]] = {}  # run: name of a result: id
    for run in runs:
        ids: dict[str, str] = {}
        for entry in run.steps:
            told = _told(entry, ids, catalog)
            ids[str(entry.get("fingerprint"))] = told.id
            before = steps.get(told.id)
            if before is None or before.state == "cached":  # rather the run that made it
                steps[told.id] = told
        roots[run.name] = {name: ids[f] for name, f in run.roots.items() if f in ids}
    title = " and ".join(dict.fromkeys(_script(run) for run in runs))
    return _story(title, runs, steps, _named_apart(roots), catalog, resolve if with_views else None)


def story_of_artifacts(
    results: Mapping[str, Manifest],
    catalog: Catalog,
    title: str,
    resolve: Resolve = resolve_reference,
) -> Story:
    """The story of artifacts with all they were made from, as far as the store still knows it."""
    steps: dict[str, Told] = {}

    def add(made: Manifest) -> None:
        if made.attempt in steps:
            return
        for above in filter(None, (catalog.latest(i.step, i.key) for i in made.inputs)):
            add(above)
        inputs = _inputs(made, catalog)
        steps[made.attempt] = _of_manifest({"state": "done"}, made, catalog, inputs)

    for manifest in results.values():
        add(manifest)
    roots = {name: manifest.attempt for name, manifest in results.items()}
    return _story(title, (), steps, roots, catalog, resolve)


def _story(
    title: str,
    runs: Sequence["Run"],
    steps: Mapping[str, Told],
    roots: Mapping[str, str],
    catalog: Catalog,
    resolve: Resolve | None,
) -> Story:
    nodes = variants.of_manifests(told.manifest for told in steps.values() if told.manifest)
    labels = variants.names(nodes)
    asked = {id: name for name, id in reversed(list(roots.items()))}
    parameters = variants.parameters(nodes, [id for id in asked if id in nodes])

    def complete(told: Told) -> Told:
        label = labels.get(told.id, told.label)
        alone = sum(other.step == told.step for other in steps.values()) == 1
        if not alone and told.id in asked:
            label = asked[told.id]
        views: Sequence[View] = ()
        if told.manifest is not None and not told.lost and resolve is not None:
            views = views_of(Made(told.manifest, catalog.store), resolve)
        settings = nodes[told.id].settings if told.id in nodes else {}
        return replace(told, label=label, views=views, settings=settings)

    with ThreadPoolExecutor(READERS) as pool:
        told = dict(zip(steps, pool.map(complete, steps.values()), strict=True))
    return Story(
        title=title or "Temper",
        store=shown(catalog.store.url),
        runs=runs,
        steps=list(told.values()),
        results={name: told[id] for name, id in roots.items()},
        parameters={
            setting: {name: of[id] for name, id in roots.items() if id in of}
            for setting, of in parameters.items()
        },
    )


def _told(entry: Mapping[str, Any], ids: Mapping[str, str], catalog: Catalog) -> Told:
    """A step by its entry in the record of a run."""
    inputs = tuple(_recorded_inputs(entry, ids))
    made = _manifest(entry, catalog)
    if made is not None:
        return _of_manifest(entry, made, catalog, inputs or _inputs(made, catalog))
    return Told(
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


def _of_manifest(
    entry: Mapping[str, Any], made: Manifest, catalog: Catalog, inputs: tuple[str, ...]
) -> Told:
    return Told(
        id=made.attempt,
        step=made.step,
        state=str(entry.get("state") or ""),
        seconds=made.seconds,
        message=str(entry.get("message") or ""),
        key=made.key,
        place=str(entry.get("place") or made.provenance.get("launcher") or ""),
        manifest=made,
        inputs=inputs,
        lost=catalog.loss(made) is not None,
    )


def _manifest(entry: Mapping[str, Any], catalog: Catalog) -> Manifest | None:
    """What a step of a run made or found; of a key made again since, what the run had."""
    attempt, key = entry.get("attempt"), entry.get("key")
    history = [made for made in catalog.history(entry["step"]) if made.key == key]
    exact = [made for made in history if made.attempt == attempt]
    return (exact or history[-1:] or [None])[0] if key and attempt else None


def _inputs(made: Manifest, catalog: Catalog) -> tuple[str, ...]:
    """What an artifact was made from; of a key made again since, the latest."""
    above = (catalog.latest(entry.step, entry.key) for entry in made.inputs)
    return tuple(dict.fromkeys(manifest.attempt for manifest in above if manifest is not None))


def _recorded_inputs(entry: Mapping[str, Any], ids: Mapping[str, str]) -> Iterator[str]:
    inputs = entry.get("inputs")
    for fingerprint in inputs if isinstance(inputs, list) else ():
        if fingerprint in ids:
            yield ids[fingerprint]


def _named_apart(roots: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The results of all runs by name; where runs mean different ones by a name, with the run."""
    meant: dict[str, set[str]] = {}
    for of_run in roots.values():
        for name, id in of_run.items():
            meant.setdefault(name, set()).add(id)
    return {
        name if len(meant[name]) == 1 else f"{name}, run {run}": id
        for run, of_run in roots.items()
        for name, id in of_run.items()
    }


def _script(run: "Run") -> str:
    scripts = [argument for argument in run.command if argument.endswith(".py")]
    return scripts[0].rpartition("/")[2].removesuffix(".py") if scripts else run.name


def told_with(steps: Iterable[Told], kind: type[View]) -> Iterator[tuple[Told, Any]]:
    """Every view of one shape, with whose it is."""
    for told in steps:
        for view in told.views:
            if isinstance(view, kind):
                yield told, view
