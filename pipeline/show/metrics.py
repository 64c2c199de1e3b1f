"""The metrics of results as people read them: numbers and intervals, with the names that a kind of
artifact gives them.

The module of a kind's views may have ``MEASURES``, which say what to call metrics. A metric
``NAME/p`` is the p-value of the difference ``NAME``: it is shown as a mark beside that.
"""

import contextlib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from pipeline.errors import TemperError
from pipeline.show.views import Measure
from pipeline.store.kinds import known_kind
from pipeline.store.manifest import Manifest

SIGNIFICANT = 0.05
MARK, NO_VALUE = "*", "–"
LEGEND = f"{MARK} p < {SIGNIFICANT}: more than chance, pair by pair"
_P_VALUE = "/p"


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
    """A metric for people: ``0.75``, ``0.75 (0.5 – 0.9)`` for an interval, ``–`` for no value."""
    if is_interval(value):
        return f"{value['value']:.3g} ({value['low']:.3g} – {value['high']:.3g})"
    if value is None:
        return NO_VALUE
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def without_p_values(names: Iterable[str]) -> list[str]:
    """The names that get a row or a column of their own."""
    names = list(names)
    return [n for n in names if not (n.endswith(_P_VALUE) and n.removesuffix(_P_VALUE) in names)]


def marked(metrics: Mapping[str, Any], name: str) -> str:
    """A metric for people, with a mark if it is the difference of two and significant."""
    text, p = metric_text(metrics.get(name)), metrics.get(f"{name}{_P_VALUE}")
    return f"{text} {MARK}" if is_number(p) and p < SIGNIFICANT else text


def label(name: str, labels: Mapping[str, str]) -> str:
    """What to call a metric: by its label, that of what a gain is in, or its own name in words."""
    if name.startswith("gain/"):
        of = name.removeprefix("gain/")
        return f"gain: {labels.get(name) or label(of, labels)}"
    return labels.get(name) or name.removeprefix("eval_").replace("/", ": ").replace("_", " ")


def labels_of(manifest: Manifest) -> Mapping[str, str]:
    """What the kind of an artifact calls its metrics."""
    with contextlib.suppress(TemperError, ImportError):
        if views := known_kind(manifest).views:
            module = importlib.import_module(views.partition(":")[0])
            measures = getattr(module, "MEASURES", ())
            return {m.metric: m.title for m in measures if isinstance(m, Measure)}
    return {}


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float)


def is_interval(value: Any) -> TypeGuard[Mapping[str, float]]:
    return isinstance(value, Mapping) and all(
        is_number(value.get(end)) for end in ("value", "low", "high")
    )
