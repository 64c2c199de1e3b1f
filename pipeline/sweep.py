"""Sweeps: many configs from one, and many results side by side.

Nothing here knows of steps. A sweep is a loop in an experiment, and what its variants share runs
once because equal steps are one:

    for name, variant in grid(cfg, {"dpo.loss.beta": [0.05, 0.1]}, seed=[0, 1]).items():
        results[name] = my_experiment(variant)["evaluation"]    # "beta=0.05 seed=0", …

    rich.print(compare(run(results), ["eval_rewards/margins"]))
"""

import dataclasses
import difflib
import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from pipeline.errors import TemperError
from pipeline.manifest import Manifest

if TYPE_CHECKING:  # workers import this module too, and show nothing
    from pipeline.comparison import Comparison

T = TypeVar("T")


def grid(
    base: T, axes: Mapping[str, Sequence[Any]] | None = None, /, **fields: Sequence[Any]
) -> dict[str, T]:
    """Every combination of values of some fields, each as ``base`` with these values in it.

    Args:
        base: a config dataclass; it is left as it is.
        axes: the values of each field; a field within a field by its path, as in
            ``{"optimizer.learning_rate": [1e-6, 5e-6]}``.
        fields: the same, for fields of ``base`` itself, as in ``beta=[0.05, 0.1]``.

    Returns:
        Configs by name, as in ``beta=0.05 learning_rate=1e-06``: in the order of the axes, the
        last one varying fastest. A field is named by its path where two end alike.

    Raises:
        TemperError: there is no such field, an axis is no list of different values, or the config
            refuses a value.
    """
    if not dataclasses.is_dataclass(base) or isinstance(base, type):
        raise TemperError(
            f"grid: the base is of the type {type(base).__name__}, which is no config dataclass, "
            "whose fields could be varied; give one made of its class, as Config()"
        )
    axes = _checked_axes(axes)
    if twice := axes.keys() & fields.keys():
        raise TemperError(f"grid: {', '.join(sorted(twice))} is given twice")
    axes |= fields
    _check_apart(axes)
    shown = _shown_names(axes)
    labelled = [_labelled(base, path, values, shown[path]) for path, values in axes.items()]
    variants: dict[str, T] = {}
    for choice in itertools.product(*labelled):
        config: Any = base
        for path, (label, value) in zip(axes, choice, strict=True):
            config = _replaced(config, path.split("."), value, label)
        variants[" ".join(label for label, _ in choice)] = config
    return variants


def compare(results: Mapping[str, Manifest], metrics: Sequence[str] | None = None) -> "Comparison":
    """Results side by side: a row for each, a column for each metric, intervals with their ends.

    Args:
        results: as :func:`pipeline.run` gives them.
        metrics: which to show, in this order; by default every number that any result has, those
            that are the same for all in one line below.

    Returns:
        Something that ``rich`` prints and a notebook shows.

    Raises:
        TemperError: no result has one of ``metrics``, or they are no results.
    """
    _check_comparable(results, metrics)
    from pipeline.comparison import Comparison

    known = comparable_metrics(results.values())
    for name in metrics or ():
        if name not in known:
            raise TemperError(f"compare: no result has the metric {name!r}; {_hint(name, known)}")
    if metrics is not None:
        return Comparison(results, metrics, {})
    shared = _shared(results.values(), known)
    return Comparison(results, [name for name in known if name not in shared], shared)


def comparable_metrics(manifests: Iterable[Manifest]) -> list[str]:
    """The names of all metrics that are numbers or intervals, in the order of their first use."""
    return list(
        dict.fromkeys(
            name
            for manifest in manifests
            for name, value in manifest.metrics.items()
            if is_number(value) or is_interval(value)
        )
    )


def metric_text(value: Any) -> str:
    """A metric for people: ``0.75``, or ``0.75 (0.5 – 0.9)`` for an interval."""
    if is_interval(value):
        return f"{value['value']:.3g} ({value['low']:.3g} – {value['high']:.3g})"
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check_comparable(results: Any, metrics: Any) -> None:
    if not isinstance(results, Mapping):
        kind = type(results).__name__
        raise TemperError(f"compare: a {kind} is no results by name; give what run() returned")
    for name, result in results.items():
        if not isinstance(result, Manifest):
            kind = type(result).__name__
            raise TemperError(f"compare: {name!r} is a {kind} and no result; give what run() made")
    if metrics is not None and (isinstance(metrics, str) or not isinstance(metrics, Sequence)):
        raise TemperError(f"compare: metrics={metrics!r}; give a list of names, as in ['loss']")


def _shared(manifests: Iterable[Manifest], names: Sequence[str]) -> dict[str, str]:
    """The metrics that say nothing of a difference; none, where nothing differs."""
    first, *others = [manifest.metrics for manifest in manifests] or [{}]
    shared = {
        name: metric_text(first.get(name))
        for name in names
        if all(metrics.get(name) == first.get(name) for metrics in others)
    }
    return shared if others and len(shared) < len(names) else {}


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float)


def is_interval(value: Any) -> TypeGuard[Mapping[str, float]]:
    return isinstance(value, Mapping) and all(
        is_number(value.get(end)) for end in ("value", "low", "high")
    )


# --- the axes of a grid --------------------------------------------------------------------------


def _checked_axes(axes: Any) -> dict[str, Sequence[Any]]:
    if axes is not None and not isinstance(axes, Mapping):
        kind = type(axes).__name__
        raise TemperError(f"grid: the axes are a {kind}; give a dict, as {{'optimizer.beta': […]}}")
    for path in axes or {}:
        if not isinstance(path, str):
            raise TemperError(f"grid: {path!r} is no field's name; name it as text, as in 'seed'")
    return dict(axes or {})


def _shown_names(paths: Iterable[str]) -> dict[str, str]:
    """What to call each field: the end of its path, or all of it where two end alike."""
    ends = {path: path.rpartition(".")[2] for path in paths}
    ambiguous = {end for end in ends.values() if list(ends.values()).count(end) > 1}
    return {path: path if end in ambiguous else end for path, end in ends.items()}


def _check_apart(paths: Iterable[str]) -> None:
    for outer, inner in itertools.permutations(paths, 2):
        if inner.startswith(f"{outer}."):
            raise TemperError(f"grid: {inner} lies within {outer}; vary one of them")


def _labelled(base: Any, path: str, values: Any, shown: str) -> list[tuple[str, Any]]:
    """The values of one axis, each with what it is called."""
    known = list(_paths(base))
    if path not in known:
        kind = type(base).__name__
        raise TemperError(f"grid: {kind} has no field {path!r}; {_hint(path, known)}")
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not values:
        raise TemperError(f"grid: {path}={values!r}; give a list of values, as in {path}=[…]")
    labels = [f"{shown}={_value_text(value)}" for value in values]
    for label in labels:
        if labels.count(label) > 1:
            raise TemperError(f"grid: {path} is to be {label.partition('=')[2]} more than once")
    return list(zip(labels, values, strict=True))


def _paths(config: Any, prefix: str = "") -> Iterator[str]:
    """Every field by its path, those within other dataclasses included."""
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        yield f"{prefix}{field.name}"
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _paths(value, f"{prefix}{field.name}.")


def _replaced(config: Any, path: list[str], value: Any, label: str) -> Any:
    name, *rest = path
    if rest:
        value = _replaced(getattr(config, name), rest, value, label)
    try:
        return dataclasses.replace(config, **{name: value})
    except (ValueError, TypeError) as error:  # as its __post_init__ says it
        raise TemperError(f"grid: {type(config).__name__} refuses {label}: {error}") from error


def _value_text(value: Any) -> str:
    return value.name if isinstance(value, enum.Enum) else str(value)


def _hint(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
