"""Formats the metrics of results: numbers, intervals, and the titles that a kind gives its metrics.

The module of a kind's views may define ``MEASURES``, which hold the titles of metrics. A metric
``NAME/p`` is the p-value of the difference ``NAME``; a significant difference gets a mark.
"""

import contextlib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, TypeGuard

from pipeline.base.errors import TemperError
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
    """A metric as text: ``0.75``, ``0.75 (0.5 – 0.9)`` for an interval that has a width, ``–`` for
    no value; of a group or a list, its parts."""
    if is_interval(value):
        ends = f" ({value['low']:.3g} – {value['high']:.3g})" if has_width(value) else ""
        return f"{value['value']:.3g}{ends}"
    if value is None:
        return NO_VALUE
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {metric_text(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(metric_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def pooled(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of each number that all have, as an interval from the lowest to the highest."""
    found: dict[str, Any] = {}
    for name in several[0]:
        every = (v["value"] if is_interval(v := one.get(name)) else v for one in several)
        values = [value for value in every if is_number(value)]
        if len(values) == len(several) and not name.endswith(_P_VALUE):
            found[name] = {
                "value": fsum(values) / len(values),
                "low": min(values),
                "high": max(values),
            }
    return found


def without_p_values(names: Iterable[str]) -> list[str]:
    """The names of metrics, without the p-values of other metrics in the list."""
    names = list(names)
    return [n for n in names if not (n.endswith(_P_VALUE) and n.removesuffix(_P_VALUE) in names)]


def marked(metrics: Mapping[str, Any], name: str) -> str:
    """A metric as text, with a mark if it is a significant difference."""
    text, p = metric_text(metrics.get(name)), metrics.get(f"{name}{_P_VALUE}")
    return f"{text} {MARK}" if is_number(p) and p < SIGNIFICANT else text


def label(name: str, labels: Mapping[str, str]) -> str:
    """The title of a metric: its label, or its name in words; for a gain, that of its metric."""
    if name.startswith("gain/"):
        of = name.removeprefix("gain/")
        return f"gain: {labels.get(name) or label(of, labels)}"
    return labels.get(name) or name.removeprefix("eval_").replace("/", ": ").replace("_", " ")


def labels_of(manifest: Manifest) -> Mapping[str, str]:
    """The titles that the artifact's kind defines for its metrics, by metric."""
    with contextlib.suppress(TemperError, ImportError):
        if views := known_kind(manifest).views:
            module = importlib.import_module(views.partition(":")[0])
            measures = getattr(module, "MEASURES", ())
            return {m.metric: m.title for m in measures if isinstance(m, Measure)}
    return {}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that a float can hold."""
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 1024)


def has_width(interval: Mapping[str, float]) -> bool:
    """Whether an interval tells of uncertainty: that of a single observation, or of observations
    that are all equal, does not."""
    return interval["low"] < interval["high"]


def is_interval(value: Any) -> TypeGuard[Mapping[str, float]]:
    return isinstance(value, Mapping) and all(
        is_number(value.get(end)) for end in ("value", "low", "high")
    )
