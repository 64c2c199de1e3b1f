"""The hardware that steps ran on and the seconds they took, from the provenance of artifacts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.base.text import clock
from pipeline.show.metrics import is_number
from pipeline.show.report.report_model import ReportedStep


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU and of accelerators."""

    cpu: float = 0.0
    device: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.cpu + other.cpu, self.device + other.device)

    def __str__(self) -> str:
        spent = ((self.device, "GPU"), (self.cpu, "CPU"))
        return ", ".join(f"{unit} {clock(seconds)}" for seconds, unit in spent if seconds)


def hardware_of(reported: ReportedStep) -> str:
    """The accelerators, or the CPU and its threads; empty if the manifest does not record them."""
    spent = _spent(reported)
    model, devices = str(spent.get("model") or ""), _number(spent, "devices")
    if devices:
        return f"{model} × {devices:g}" if devices > 1 else model
    threads = _number(spent, "threads") or _number(_provenance(reported), "threads")
    counted = f"{threads:g} thread{'' if threads == 1 else 's'}" if threads else ""
    return ", ".join(filter(None, (model, counted)))


def cost_of(reported: ReportedStep) -> Cost:
    """The cost of the attempt that made the artifact, without earlier attempts that it resumed."""
    spent = _spent(reported)
    seconds = reported.manifest.seconds if reported.manifest else 0.0
    return Cost(_number(spent, "cpu_seconds"), _number(spent, "devices") * seconds)


def total(steps: Iterable[ReportedStep]) -> Cost:
    return sum(map(cost_of, steps), Cost())


def _spent(reported: ReportedStep) -> Mapping[str, Any]:
    spent = _provenance(reported).get("spent")
    return spent if isinstance(spent, Mapping) else {}


def _provenance(reported: ReportedStep) -> Mapping[str, Any]:
    return reported.manifest.provenance if reported.manifest else {}


def _number(values: Mapping[str, Any], name: str) -> float:
    """A recorded number, also if it is recorded as text; 0 if it is no positive number."""
    value = values.get(name)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return float(value) if is_number(value) and not isinstance(value, bool) and value > 0 else 0.0
