"""``--json``: what a command found, as one JSON object on standard output.

Each command makes a value and shows it either as text or by :func:`print_json`. A value is made of
dataclasses, whose fields are the schema: ``docs/agents.md`` lists them, and a test holds them. An
object names its schema, as in ``temper.runs/1``; the number rises when a field goes or changes its
meaning, and not when one is added.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from pipeline.base.redaction import record
from pipeline.dag.step import Step
from pipeline.estimate.estimates import Estimates
from pipeline.estimate.remaining import left_of
from pipeline.plan.planning import Plan, PlannedStep
from pipeline.show.report.headline import outcome
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run

VERSION = 1


def print_json(schema: str, value: Any) -> None:
    """Print a value as an object of the schema ``temper.SCHEMA/1``."""
    told = plain(value)
    named = told if isinstance(told, dict) else {"items": told}
    print(record({"schema": f"temper.{schema}/{VERSION}", **named}).decode(), flush=True)


def plain(value: Any) -> Any:
    """A value as JSON: artifacts and runs by what names them, other dataclasses by their fields."""
    match value:
        case Manifest():
            return of_manifest(value)
        case Run():
            return of_run(value)
        case Step():
            return value.name
        case Enum():
            return value.value
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {str(name): plain(part) for name, part in value.items()}
        case str():
            return str(value)
        case Sequence() | frozenset() | set():
            return [plain(part) for part in value]
        case _ if dataclasses.is_dataclass(value):
            parts = dataclasses.fields(value)
            return {part.name: plain(getattr(value, part.name)) for part in parts}
    return value if isinstance(value, bool | int | float | None) else str(value)


def of_manifest(made: Manifest) -> dict[str, Any]:
    return {
        "artifact": made.name,
        "step": made.step,
        "key": made.key,
        "attempt": made.attempt,
        "digest": made.digest,
        "kind": made.kind,
        "seconds": made.seconds,
        "size": made.size,
        "files": len(made.files),
        "run": made.provenance.get("run"),
        "metrics": plain(made.metrics),
        "inputs": [{"step": e.step, "key": e.key, "part": e.part} for e in made.inputs],
    }


def of_plan(plan: Plan, estimates: Estimates | None, title: str, jobs: int = 1) -> dict[str, Any]:
    """A plan; seconds and bytes are estimates, and null where there is none. The seconds of all
    leave out the steps without, whose number is `unknown`."""
    costs = estimates.of if estimates is not None else {}
    seconds, unknown = left_of(estimates.ahead(plan), jobs) if estimates is not None else (0.0, 0)

    def of_step(planned: PlannedStep) -> dict[str, Any]:
        print_ = planned.step.fingerprint
        cost = costs.get(print_)
        return {
            "step": planned.step.name,
            "label": plan.labels[print_],
            "results": [name for name, root in plan.roots.items() if root.fingerprint == print_],
            "state": planned.state.value,
            "reason": planned.reason,
            "key": planned.key,
            "seconds": plain(cost.seconds) if cost else None,
            "memory": plain(cost.memory) if cost else None,
            "disk": plain(cost.disk) if cost else None,
        }

    return {
        "title": title,
        "is_complete": plan.is_complete,
        "seconds": None if unknown and unknown == len(costs) else seconds,
        "unknown": unknown,
        "steps": [of_step(planned) for planned in plan.steps],
    }


def of_results(catalog: Catalog, results: Mapping[str, Manifest]) -> dict[str, Any]:
    """Results by name, each an artifact with the address of its files; and what they show."""
    store, found = catalog.store, outcome(results, catalog)
    return {
        "headline": found.sentence if found else None,
        "also": list(found.also) if found else [],
        "results": {
            name: of_manifest(made) | {"path": store.url_of(store.content_path(made))}
            for name, made in results.items()
        },
    }


def of_run(run: Run) -> dict[str, Any]:
    return {
        "run": run.name,
        "experiment": run.experiment,
        "title": run.title,
        "outcome": run.shown_outcome(),
        "seconds": run.shown_seconds(),
        "command": list(run.command),
        "commit": run.commit,
        "host": run.host,
        "results": list(run.roots),
        **{state: run.count(state) for state in ("done", "cached", "failed")},
    }
