"""Results as a table: to filter, plot and join in a notebook.

    made = run(roots, store)
    table = results(made, store).to_pandas()

A row a result: its name, step and key, every setting in which the rows differ (their own and those
of all they were made from), then every metric. An interval has two more columns, ``METRIC.low`` and
``METRIC.high``. Nothing here reads data: manifests say it all.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline import variants
from pipeline.catalog import Catalog
from pipeline.errors import TemperError
from pipeline.manifest import Manifest
from pipeline.store import Store
from pipeline.sweep import comparable_metrics, is_interval

if TYPE_CHECKING:
    import pyarrow as pa


def results(
    of: Mapping[str, Manifest] | str, store: str | Store = "store", *, only_latest: bool = True
) -> "pa.Table":
    """Results as an Arrow table (``.to_pandas()`` makes a data frame of it).

    Args:
        of: what :func:`pipeline.run` returned; or the name of a step, for all it ever made.
        store: where they were made; settings of what they were made from are looked up there.
        only_latest: of a step, leave out artifacts that were made again later.

    Raises:
        TemperError: the store cannot be read, or has nothing of the step.
    """
    import pyarrow as pa

    catalog = Catalog(store if isinstance(store, Store) else Store(store))
    chosen = _of_step(catalog, of, only_latest) if isinstance(of, str) else dict(of)
    nodes = variants.of_manifests(_with_all_above(chosen, catalog))
    attempts = [manifest.attempt for manifest in chosen.values()]
    settings = variants.parameters(nodes, attempts)
    taken = {"result", "step", "key"}
    columns: dict[str, list[Any]] = {
        "result": list(chosen),
        "step": [manifest.step for manifest in chosen.values()],
        "key": [manifest.key for manifest in chosen.values()],
    }
    for name, values in settings.items():
        column = f"setting.{name}" if name in taken else name
        columns[column] = [values.get(attempt) for attempt in attempts]
    for name in comparable_metrics(chosen.values()):
        measured = [manifest.metrics.get(name) for manifest in chosen.values()]
        column = f"metric.{name}" if name in columns else name
        columns[column] = [value["value"] if is_interval(value) else value for value in measured]
        if any(is_interval(value) for value in measured):
            for end in ("low", "high"):
                columns[f"{column}.{end}"] = [
                    value[end] if is_interval(value) else None for value in measured
                ]
    return pa.table({name: _column(values) for name, values in columns.items()})


def _column(values: list[Any]) -> "pa.Array":
    """Values of one type as they are; a mixture as text."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        values = [None if value is None else float(value) for value in values]
    elif len(kinds) > 1 or not kinds <= {bool, int, float, str}:
        values = [None if value is None else str(value) for value in values]
    return pa.array(values)


def _of_step(catalog: Catalog, step: str, only_latest: bool) -> dict[str, Manifest]:
    made = catalog.history(step)
    if only_latest:
        made = [m for m in made if catalog.latest(m.step, m.key) == m]
    if not made:
        known = ", ".join(catalog.store.steps()) or "nothing yet"
        raise TemperError(f"results: the store has no artifact of {step!r}; it has: {known}")
    return {manifest.attempt: manifest for manifest in made}


def _with_all_above(chosen: Mapping[str, Manifest], catalog: Catalog) -> list[Manifest]:
    """The artifacts and all that they were made from, as far as the store knows it."""
    found: dict[str, Manifest] = {}
    pending = list(chosen.values())
    while pending:
        manifest = pending.pop()
        if manifest.attempt not in found:
            found[manifest.attempt] = manifest
            pending += filter(None, (catalog.latest(i.step, i.key) for i in manifest.inputs))
    return list(found.values())
