"""The plan: every step of a DAG with its state, before anything runs.

A step's key needs the digests of its inputs, so states are worked out from the sources down:

- ``cached``: every input is known and the key has a manifest;
- ``run``: every input is known and the key has none, or an input is not known yet and no earlier
  artifact could match, whatever it turns out to be;
- ``maybe``: an input is not known yet, and an earlier artifact was made by the same recipe from
  other input bytes: if the inputs turn out to be those, nothing runs (early cutoff).

Looking costs one listing per step name and one read per manifest that is used.
"""

import enum
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from pipeline.canonical import Json, hash_json
from pipeline.errors import TemperError
from pipeline.manifest import Manifest
from pipeline.step import Input, Step
from pipeline.store import Store
from pipeline.why import Nearest, explain, nearest


class State(enum.Enum):
    CACHED = "cached"
    RUN = "run"
    MAYBE = "maybe"


@dataclass(frozen=True)
class PlannedStep:
    """A step, its state, why, and (when cached) its artifact."""

    step: Step
    state: State
    reason: str
    manifest: Manifest | None = None


@dataclass(frozen=True)
class Plan:
    """Every step of the DAG in an order in which they can run; ``roots`` are what was asked for."""

    roots: Mapping[str, Step]
    steps: tuple[PlannedStep, ...]

    def in_state(self, *states: State) -> list[PlannedStep]:
        return [planned for planned in self.steps if planned.state in states]

    @property
    def is_complete(self) -> bool:
        return all(planned.state is State.CACHED for planned in self.steps)


class Resolver:
    """Finds the artifact a step stands for, reading each manifest at most once.

    Only what exists is remembered: manifests are never replaced, while one that is missing now
    may be committed a moment later, perhaps by another driver.
    """

    def __init__(self, store: Store):
        self.store = store
        self._found: dict[str, Manifest] = {}

    def artifact(self, step: Step) -> Manifest | None:
        """The committed artifact of a step, or ``None``. Its inputs are looked up first."""
        for needed in topological([step], skip=self._found.keys()):
            resolved = self.key_and_recipe(needed)
            found = resolved and self.store.manifest(needed.name, resolved[0])
            if found:
                self._found[needed.fingerprint] = found
        return self._found.get(step.fingerprint)

    def key_and_recipe(self, step: Step) -> tuple[str, Json] | None:
        """The key of a step and what it is the hash of; ``None`` if an input is not known yet to
        :meth:`artifact`."""
        known = {i: self._found.get(i.step.fingerprint) for i in step.inputs}
        digests = {i: m.digest_of(i.part) for i, m in known.items() if m is not None}
        if len(digests) < len(known):
            return None
        recipe = step.recipe(digests.__getitem__)
        return hash_json(recipe), recipe

    def inputs(self, step: Step) -> list[tuple[Input, Manifest]]:
        """What each input of a step turned out to be, in the order of ``step.inputs``.

        Raises:
            TemperError: an input is not in the store.
        """
        found = []
        for reference in step.inputs:
            manifest = self.artifact(reference.step)
            if manifest is None:
                raise TemperError(f"{step.name}: its input {reference} is not in the store")
            found.append((reference, manifest))
        return found


def topological(roots: Iterable[Step], skip: Container[str] = ()) -> list[Step]:
    """Every step that the roots need, each recipe once, inputs before what uses them.

    Steps whose fingerprint is in ``skip`` are left out, with what only they need.
    """
    order: dict[str, Step] = {}
    pending = [*reversed(list(roots))]
    while pending:
        step = pending[-1]
        needed = [i.step for i in step.inputs if i.step.fingerprint not in order]
        missing = [needs for needs in needed if needs.fingerprint not in skip]
        if step.fingerprint in order or step.fingerprint in skip:
            pending.pop()
        elif missing:
            pending.extend(reversed(missing))
        else:
            order[step.fingerprint] = pending.pop()
    return list(order.values())


def make_plan(roots: Mapping[str, Step], store: Store) -> Plan:
    """Work out the state of every step the roots need. Runs nothing, writes nothing."""
    resolver = Resolver(store)
    history: dict[str, list[Manifest]] = {}
    planned: dict[str, PlannedStep] = {}
    for step in topological(roots.values()):
        known = all(planned[i.step.fingerprint].manifest for i in step.inputs)
        manifest = resolver.artifact(step) if known else None
        if manifest is not None:
            planned[step.fingerprint] = PlannedStep(step, State.CACHED, "", manifest)
            continue
        if step.name not in history:
            history[step.name] = store.manifests([step.name])
        planned[step.fingerprint] = _plan_missing(step, history[step.name], planned)
    return Plan(dict(roots), tuple(planned.values()))


def _plan_missing(
    step: Step,
    earlier: list[Manifest],
    planned: Mapping[str, PlannedStep],
) -> PlannedStep:
    waiting = [i for i in step.inputs if planned[i.step.fingerprint].state is not State.CACHED]
    unknown = {reference: f"unknown {reference}" for reference in waiting}

    def digest_of(reference: Input) -> str:
        if reference in unknown:
            return unknown[reference]
        manifest = planned[reference.step.fingerprint].manifest
        assert manifest is not None  # cached, as `waiting` holds all the others
        return manifest.digest_of(reference.part)

    names = {digest_of(reference): str(reference) for reference in step.inputs}
    close: Nearest | None = nearest(step.recipe(digest_of), earlier, names)
    if not waiting:
        return PlannedStep(step, State.RUN, explain(close))
    after = "after " + ", ".join(dict.fromkeys(reference.step.name for reference in waiting))
    expected = {str(reference) for reference in waiting}
    if close is not None and not close.changes and set(close.changed_inputs) == expected:
        return PlannedStep(step, State.MAYBE, f"{after}, unless that makes what it made before")
    changes = explain(close, expected) if close else ""
    return PlannedStep(step, State.RUN, f"{after}; {changes}" if changes else after)
