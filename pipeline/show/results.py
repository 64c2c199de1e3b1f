"""Results as a table, to filter, plot and join in a notebook.

    made = run(experiment(cfg))
    results(made).to_pandas().plot("beta", "eval_rewards/margins")
    results("dpo_beta_sweep")                    # the newest run of an experiment
    results("evaluate")                          # all artifacts that a step ever made
    results(["sft", "dpo"])                      # several of these in one table

The table has a row for each result: its name, experiment, step and key; the inputs and settings in
which the rows differ, including settings of their ancestors; then every metric. An interval has two
more columns, ``METRIC.low`` and ``METRIC.high``. :func:`compare` prints the same rows. This module
reads only manifests and run records, never data.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.base.errors import TemperError
from pipeline.base.text import hint
from pipeline.plan import variants
from pipeline.plan.labels import recorded_labels
from pipeline.show.artifact_handle import Made
from pipeline.show.comparison import Comparison
from pipeline.show.metrics import comparable_metrics, is_interval, metric_text, without_p_values
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store, open_store
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run, names_of_runs, read_run, read_runs

if TYPE_CHECKING:
    import pyarrow as pa


Columns = dict[str, list[Any]]
Results = Mapping[str, Made] | Mapping[str, Manifest]
"""Artifacts or manifests by name, as :func:`pipeline.run` returns them."""
Named = Results | str
"""Results, or the name of a step, of an experiment or of a run."""


@dataclass(frozen=True)
class _Row:
    """A result: its name, its artifact, and the experiment that asked for it."""

    name: str
    manifest: Manifest
    experiment: str


def results(
    of: Named | Sequence[Named], store: str | Store | None = None, *, only_latest: bool = True
) -> "pa.Table":
    """Results as an Arrow table (``.to_pandas()`` converts it to a data frame).

    Args:
        of: what :func:`pipeline.run` returned; or the name of a step, for all of its artifacts; of
            an experiment, for the results of its newest run; or of a run; or a list of such.
        store: the store in which to look up a name, as for :func:`pipeline.run`; results of ``run``
            know their own store.
        only_latest: for the name of a step, leave out artifacts that were made again later.

    Warns:
        UserWarning: a manifest of the named step cannot be read, so its artifact is left out.

    Raises:
        TemperError: the store cannot be read, or has nothing of this name.
    """
    import pyarrow as pa

    catalog = Catalog(_store_of(of, store))
    rows = _rows(of, catalog, only_latest)
    for unread in catalog.unreadable(n for n in _several(of) if isinstance(n, str)):
        warnings.warn(f"the table lacks an artifact: {unread.why}", stacklevel=2)
    above = [*catalog.with_all_above(row.manifest for row in rows)]
    nodes = variants.of_manifests(above)
    columns = _identity(rows)
    columns |= _inputs(nodes, recorded_labels(catalog.store, above), rows, columns)
    columns |= _settings(nodes, rows, columns)
    columns |= _metrics([row.manifest for row in rows], columns)
    return pa.table({name: _column(values) for name, values in columns.items()})


def _several(of: Any) -> list[Any]:
    return [*of] if isinstance(of, list | tuple) else [of]


def _store_of(of: Named | Sequence[Named], store: str | Store | None) -> Store:
    """The store of the results: their own if ``run`` returned them, else `store`.

    Raises:
        TemperError: the results are from several stores.
    """
    given = (r for one in _several(of) if isinstance(one, Mapping) for r in one.values())
    own = {result.store.url: result.store for result in given if isinstance(result, Made)}
    if len(own) > 1:
        raise TemperError(f"results of several stores ({', '.join(own)}) have no common table")
    return next(iter(own.values()), None) or open_store(store)


# --- which results ---------------------------------------------------------------------------


def _rows(of: Named | Sequence[Named], catalog: Catalog, only_latest: bool = True) -> list[_Row]:
    found: list[_Row] = []
    for one in _several(of):
        if isinstance(one, str):
            found += _named(one, catalog, only_latest)
        else:
            found += [_Row(name, made, _experiment(made)) for name, made in _manifests(one).items()]
    return found


def _manifests(of: Any) -> dict[str, Manifest]:
    """
    Raises:
        TemperError: the value is no mapping of results.
    """
    if not isinstance(of, Mapping):
        kind = type(of).__name__
        raise TemperError(f"a {kind} is no results by name; give what run() returned")
    found = {n: made.manifest if isinstance(made, Made) else made for n, made in of.items()}
    for name, made in found.items():
        if not isinstance(made, Manifest):
            kind = type(made).__name__
            raise TemperError(f"{name!r} is a {kind} and no result; give what run() made")
    return found


def _named(name: str, catalog: Catalog, only_latest: bool) -> Iterator[_Row]:
    """The results of the step, run or experiment of this name.

    Raises:
        TemperError: the store has nothing of this name.
    """
    store = catalog.store
    if name in store.steps():
        yield from _of_step(name, catalog, only_latest)
    elif name in names_of_runs(store):
        yield from _rows_of_run(read_run(store, name), catalog)
    else:
        runs = read_runs(store)
        of_experiment = [run for run in runs if run.experiment == name]
        if not of_experiment:
            known = [*store.steps(), *dict.fromkeys(run.experiment for run in runs)]
            raise TemperError(
                f"results: the store {store.url} has no artifact of {name!r}, and no run of an "
                f"experiment of this name; it has: {', '.join(known) or 'nothing yet'}"
            )
        yield from _rows_of_run(of_experiment[-1], catalog)


def _of_step(step: str, catalog: Catalog, only_latest: bool) -> Iterator[_Row]:
    """All artifacts of a step, each under the name that it has in the newest run with it."""
    called: dict[str, tuple[str, str]] = {}
    for run in read_runs(catalog.store):
        results = {fingerprint: name for name, fingerprint in run.roots.items()}
        for entry in run.steps:
            if entry["step"] == step and entry.get("key"):
                name = results.get(str(entry.get("fingerprint"))) or entry.get("label")
                called[entry["key"]] = str(name or step), run.experiment
    for made in catalog.history(step):
        if not only_latest or catalog.latest(made.step, made.key) == made:
            name, experiment = called.get(made.key, (made.name, _experiment(made)))
            yield _Row(name, made, experiment)


def of_run(run: Run, catalog: Catalog) -> Iterator[tuple[str, Manifest]]:
    """The results of a run that exist, by name."""
    entries = {entry.get("fingerprint"): entry for entry in run.steps}
    for name, fingerprint in run.roots.items():
        entry = entries.get(fingerprint, {})
        if entry.get("key") and (made := catalog.latest(entry["step"], entry["key"])):
            yield name, made


def _rows_of_run(run: Run, catalog: Catalog) -> Iterator[_Row]:
    return (_Row(name, made, run.experiment) for name, made in of_run(run, catalog))


def _experiment(made: Manifest) -> str:
    """The experiment that first made an artifact; others may share it."""
    return str(made.provenance.get("experiment") or "")


# --- columns ---------------------------------------------------------------------------------


def _identity(rows: Sequence[_Row]) -> Columns:
    return {
        "result": [row.name for row in rows],
        "experiment": [row.experiment for row in rows],
        "step": [row.manifest.step for row in rows],
        "key": [row.manifest.key for row in rows],
    }


def _inputs(
    nodes: Mapping[str, variants.Node],
    labels: Mapping[str, str],
    rows: Sequence[_Row],
    taken: Columns,
) -> Columns:
    """A column for each parameter whose input differs between results, such as the model that an
    evaluation evaluates."""

    def name(attempt: str | None) -> str | None:
        if attempt is None or attempt not in nodes:
            return None
        label = labels[attempt]
        return f"{nodes[attempt].step} ({label})" if label else nodes[attempt].step

    given = [nodes[row.manifest.attempt].inputs for row in rows]
    paths = dict.fromkeys(path for inputs in given for path in inputs)
    columns: Columns = {}
    for path in paths:
        values = [name(inputs.get(path)) for inputs in given]
        if len({*values} - {None}) > 1:
            columns[_free(path, taken, "input")] = values
    return columns


def _settings(nodes: Mapping[str, variants.Node], rows: Sequence[_Row], taken: Columns) -> Columns:
    attempts = [row.manifest.attempt for row in rows]
    return {
        _free(name, taken, "setting"): [values.get(attempt) for attempt in attempts]
        for name, values in variants.parameters(variants.with_absent(nodes), attempts).items()
    }


def _metrics(manifests: Sequence[Manifest], taken: Columns) -> Columns:
    """A column for every metric that is a number; an interval has two more, for its ends."""
    columns: Columns = {}
    for name in comparable_metrics(manifests):
        measured = [_in_64_bits(manifest.metrics.get(name)) for manifest in manifests]
        column = _free(name, taken | columns, "metric")
        columns[column] = [value["value"] if is_interval(value) else value for value in measured]
        if any(map(is_interval, measured)):
            for end in ("low", "high"):
                columns[f"{column}.{end}"] = [
                    value[end] if is_interval(value) else None for value in measured
                ]
    return columns


def _in_64_bits(value: Any) -> Any:
    """A metric whose whole numbers fit into a table's; one that is larger, such as a count of
    operations, becomes a float, so that it can still be plotted."""
    if isinstance(value, Mapping):
        return {name: _in_64_bits(part) for name, part in value.items()}
    return float(value) if _is_beyond_64_bits(value) else value


def _is_beyond_64_bits(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > 63


def _free(name: str, taken: Columns, kind: str) -> str:
    """The name of a column, with its kind as a prefix if the name is taken."""
    return f"{kind}.{name}" if name in taken else name


def _column(values: list[Any]) -> "pa.Array":
    """An Arrow array: ints and floats become floats, any other mixture of types becomes text, and
    so do ints beyond 64 bits, such as a seed, of which every digit counts."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if any(map(_is_beyond_64_bits, values)):
        values = [None if value is None else str(value) for value in values]
    elif kinds <= {int, float} and len(kinds) == 2:
        values = [None if value is None else float(value) for value in values]
    elif len(kinds) > 1 or not kinds <= {bool, int, float, str}:
        values = [None if value is None else str(value) for value in values]
    return pa.array(values)


# --- side by side -----------------------------------------------------------------------------


def compare(
    of: Named | Sequence[Named],
    metrics: Sequence[str] | None = None,
    store: str | Store | None = None,
) -> "Comparison":
    """Results side by side: a row for each, a column for each setting in which they differ and for
    each metric, intervals with their ends; and the mean over seeds.

        rich.print(compare(run(roots), ["eval_rewards/margins"]))

    Args:
        of: the results, as for :func:`results`.
        metrics: the metrics to show, in this order. By default every number that any result has;
            metrics that are the same for all results go into one line below.
        store: the store in which to look up a name.

    Returns:
        An object that ``rich`` prints and a notebook shows.

    Raises:
        TemperError: no result has one of ``metrics``, or ``of`` holds no results.
    """
    if metrics is not None and (isinstance(metrics, str) or not isinstance(metrics, Sequence)):
        raise TemperError(f"compare: metrics={metrics!r}; give a list of names, as in ['loss']")
    catalog = Catalog(_store_of(of, store))
    chosen = _apart(_rows(of, catalog))
    known = comparable_metrics(chosen.values())
    for name in metrics or ():
        if name not in known:
            raise TemperError(f"compare: no result has the metric {name!r}; {hint(name, known)}")
    return side_by_side(chosen, catalog, metrics)


def side_by_side(
    chosen: Mapping[str, Manifest], catalog: Catalog, metrics: Sequence[str] | None = None
) -> Comparison:
    """The comparison of results by name; see :func:`compare`."""
    shared: Mapping[str, str] = {}
    if metrics is None:
        known = without_p_values(comparable_metrics(chosen.values()))
        shared = _shared(chosen.values(), known)
        metrics = [name for name in known if name not in shared]
    nodes = variants.of_manifests(catalog.with_all_above(chosen.values()))
    names = {made.attempt: name for name, made in reversed([*chosen.items()])}
    settings = {
        setting: {name: of[m.attempt] for name, m in chosen.items() if m.attempt in of}
        for setting, of in variants.effective(nodes, [*names]).items()
    }
    families = [[names[one] for one in of] for of in variants.families(nodes, reversed([*names]))]
    return Comparison(chosen, metrics, shared, settings, families)


def _apart(rows: Sequence[_Row]) -> dict[str, Manifest]:
    """Results by name; several with the same name get their keys as suffix."""
    times = Counter(row.name for row in rows)
    return {
        row.name if times[row.name] == 1 else f"{row.name} ({row.manifest.name})": row.manifest
        for row in rows
    }


def _shared(manifests: Iterable[Manifest], names: Sequence[str]) -> dict[str, str]:
    """The metrics that are the same for all results; empty if that holds for every metric."""
    first, *others = [manifest.metrics for manifest in manifests] or [{}]
    shared = {
        name: metric_text(first.get(name))
        for name in names
        if all(metrics.get(name) == first.get(name) for metrics in others)
    }
    return shared if others and len(shared) < len(names) else {}
