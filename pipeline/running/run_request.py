"""Checks and names what a run is asked for, before anything is planned."""

import multiprocessing
import os
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.base.errors import TemperError
from pipeline.base.extras import require_installed
from pipeline.dag.step import Input, Step, StepFunction
from pipeline.plan.labels import labels
from pipeline.plan.planning import Plan, State, steps_named, topological
from pipeline.store.layout import PRESENT, Store, open_store
from pipeline.wire.lifeline import WORKER_ENVIRONMENT

if TYPE_CHECKING:  # imported late: workers import this module too, and need none of it
    from pipeline.launchers.config import LauncherConfig


def named(roots: Mapping[str, Step] | Iterable[Step]) -> Mapping[str, Step]:
    """Roots by name; for a list, by the steps' names and labels."""
    if isinstance(roots, Step | str) or not isinstance(roots, Iterable):
        given = str(roots) if isinstance(roots, Step) else reprlib.repr(roots)
        raise TemperError(f"run({given}): give the steps that are wanted as a list or a dict")
    if isinstance(roots, Mapping):
        return {str(name): root for name, root in roots.items()}
    steps: list[Step] = list(roots)
    if not all(isinstance(step, Step) for step in steps):
        return {repr(step): step for step in steps}  # `check_request` refuses these
    called = labels(topological(steps), {})
    alone = Counter(step.name for step in steps)
    given = Counter(step.label for step in steps)
    names = [_result_name(step, called[step.fingerprint], alone, given) for step in steps]
    meant: dict[str, set[str]] = {}
    for step, name in zip(steps, names, strict=True):
        meant.setdefault(name, set()).add(step.fingerprint)
    return {
        name if len(meant[name]) == 1 else f"{name} {step.fingerprint[:8]}": step
        for name, step in zip(names, steps, strict=True)
    }


def _result_name(step: Step, label: str, alone: Mapping[str, int], given: Mapping[str, int]) -> str:
    """The name of a result without a name: the step's label or name."""
    if step.label and given[step.label] == 1:
        return step.label
    return step.name if alone[step.name] == 1 else f"{step.name} {label}".strip()


def check_request(roots: Mapping[str, Step], jobs: int, launcher: Any) -> None:
    from pipeline.launchers.config import LauncherConfig

    if not isinstance(launcher, LauncherConfig | None):
        raise TemperError(f"launcher={launcher!r}: give LauncherConfig(use=['local'])")
    if type(jobs) is not int or jobs < 1:
        raise TemperError(f"jobs={jobs!r}: at least one step must be able to run at a time")
    require_steps(roots)
    refuse_in_worker("run")


def refuse_in_worker(call: str) -> None:
    """Refuse a run that a script begins while a worker, or a process of ``multiprocessing``,
    imports the script."""
    guard = 'put it under `if __name__ == "__main__":`'
    if WORKER_ENVIRONMENT in os.environ:
        raise TemperError(
            f"{call}() was called in the worker of a step; {guard}, and pass other steps to a step "
            "as arguments"
        )
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise TemperError(f"{call}() was called again by a process that the script starts; {guard}")


def built(build: Callable[[Any], Any], config: Any) -> Mapping[str, Step]:
    """The results of an experiment, by name.

    Raises:
        TemperError: it returned something else.
    """
    token = PRESENT.set(getattr(config, "store", None))
    try:
        roots = build(config)
    finally:
        PRESENT.reset(token)
    if not isinstance(roots, Mapping):
        name = getattr(build, "__name__", "the experiment")
        raise TemperError(
            f"{name}(cfg) returned {reprlib.repr(roots)}; return the steps "
            "that are wanted as a dict, as in {'model': STEP}"
        )
    require_steps(roots)
    return roots


def require_steps(roots: Mapping[str, Any]) -> None:
    """
    Raises:
        TemperError: a result is no step, or there is none.
    """
    if not roots:
        raise TemperError("no step is wanted; give at least one, as in {'model': STEP}")
    for name, root in roots.items():
        if isinstance(root, StepFunction):
            raise TemperError(f"result {name!r} is {root.name}, uncalled: write {root.name}(…)")
        if isinstance(root, Input):
            raise TemperError(f"result {name!r} is {root}; name a whole step, not a part")
        if not isinstance(root, Step):
            raise TemperError(
                f"result {name!r} is {reprlib.repr(root)}, which is no step; give each step a name"
            )


def check_names(**options: Collection[str]) -> None:
    for option, names in options.items():
        if isinstance(names, str) or not isinstance(names, Collection):
            raise TemperError(f"{option}={names!r}: give names of steps as in ['train_dpo']")


def visible_to_workers(store: str | Store | None) -> Store:
    store = open_store(store)
    if store.url.startswith("memory:"):
        raise TemperError(
            f"store={store.url}: workers are processes and cannot see this one's memory; name a "
            "folder or a bucket, as in store=store"
        )
    return store


def chosen(plan: Plan, names: Collection[str]) -> Mapping[str, Step]:
    """The steps of a plan with these names, by name and label.

    Raises:
        TemperError: no step has one of the names.
    """
    return {  # they keep their labels in the plan of these alone
        f"{step.name} {plan.labels[step.fingerprint]}".strip(): step
        for step in steps_named(plan, names, "only")
    }


def require_packages(plan: Plan, launcher: "LauncherConfig | None" = None) -> None:
    """Refuse steps that will run on this machine and need packages that are not installed.

    Raises:
        TemperError: a package is missing; the message names it and how to install it.
    """
    if launcher is not None and set(launcher.use) != {"local"}:
        return  # jobs run on machines with their own packages
    for planned in plan.in_state(State.RUN, State.BLOCKED):
        require_installed(planned.step.needs_packages, planned.step.name)
