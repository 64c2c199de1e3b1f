"""The jobs of a sweep, ``-m SETTING=1,2``, as one run: a step that several jobs need runs once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.base.text import counted
from pipeline.dag.step import Step
from pipeline.plan.variants import label, typed_apart


@dataclass(frozen=True)
class Job:
    """One job: its settings as typed, its config, its results by name, and its fault, if any."""

    typed: Sequence[str]
    config: Any
    roots: Mapping[str, Step]
    fault: str = ""


def refuse_faults(jobs: Sequence[Job]) -> None:
    """
    Raises:
        TemperError: something is wrong with a job.
    """
    settings = typed_apart([job.typed for job in jobs])
    faults: dict[str, list[str]] = {}
    for number, (job, of) in enumerate(zip(jobs, settings, strict=True), 1):
        if job.fault:
            faults.setdefault(job.fault, []).append(label(of) or f"job {number}")
    if faults:
        told = [f"{_several(which)}: {fault}" for fault, which in faults.items()]
        raise TemperError(f"{'; '.join(told)}; nothing has run")


def _several(jobs: Sequence[str]) -> str:
    more = counted(len(jobs) - 1, "more job")
    return f"{jobs[0]} and {more}" if len(jobs) > 1 else jobs[0]


def in_one_run(jobs: Sequence[Job]) -> dict[str, Step]:
    """The results of all jobs by name. Where jobs have different steps under one name, the name
    ends in the settings that the step depends on, as in ``evaluation beta=0.1``."""
    settings = typed_apart([job.typed for job in jobs])
    together: dict[str, Step] = {}
    for name in dict.fromkeys(name for job in jobs for name in job.roots):
        pairs = zip(settings, jobs, strict=True)
        having = [(of, job.roots[name]) for of, job in pairs if name in job.roots]
        axes = every = list(dict.fromkeys(axis for of in settings for axis in of))
        for axis in every:
            fewer = [other for other in axes if other != axis]
            axes = fewer if _decide(fewer, having) else axes
        is_clear = _decide(axes, having)
        for number, (of, step) in enumerate(having, 1):
            which = label({a: of[a] for a in axes if a in of}) if is_clear else f"job {number}"
            together[f"{name} {which}".strip()] = step
    return together


def _decide(axes: Sequence[str], having: Sequence[tuple[Mapping[str, str], Step]]) -> bool:
    """Whether jobs with the same values of some settings have the same step."""
    meant: dict[tuple[str | None, ...], str] = {}
    return all(
        meant.setdefault(tuple(of.get(axis) for axis in axes), step.fingerprint) == step.fingerprint
        for of, step in having
    )
