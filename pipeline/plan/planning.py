"""The plan: every step of a DAG with its state, before anything runs.

A step's key depends on the digests of its inputs, so states are computed from the sources down:

- ``cached``: the digests of all inputs are known, and the store has a manifest for the key;
- ``run``: all digests are known and the store has no manifest for the key; or an input is not known
  yet, and the same call was never made, or no earlier artifact can match whatever that input is;
- ``maybe``: an input is not known yet, the same call was made before, and an earlier artifact
  differs only in the bytes of such inputs: if the new inputs turn out to have these bytes, nothing
  runs (early cutoff). Two calls are the same if they and all calls above them differ only in code
  and in the content of files;
- ``blocked``: it would run, but another driver is making it now; a run waits for that driver.

If an artifact's data is evicted, lost or damaged, its manifest still holds its digest, so steps
that used it stay cached. It is made again only if its bytes are needed: because it is a result, or
an input of a step that runs. Planning costs a few requests to the store for each step name.
"""

import contextlib
import enum
import functools
import gc
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.base.errors import TemperError
from pipeline.dag.canonical import Json
from pipeline.dag.step import Input, Step, StepFunction, bases_of
from pipeline.observed.discovery import Present, home_of
from pipeline.observed.scratch_dependencies import what_results_need
from pipeline.plan.labels import labels
from pipeline.plan.rerun_reasons import History, explain
from pipeline.plan.resolver import Resolver
from pipeline.plan.unfinished import Unfinished
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.lease import Leases
from pipeline.store.manifest import Manifest
from pipeline.store.names.recorded import record_of


class State(enum.Enum):
    CACHED = "cached"
    RUN = "run"
    MAYBE = "maybe"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class PlannedStep:
    """A step, its state, and the reason.

    Attributes:
        key: the key of its artifact; ``None`` while an input is not known.
        manifest: its artifact, if it is cached.
        may_match: whether an earlier artifact may turn out to be it, although it is in state
            ``run``: one of another call, if a step makes the same bytes with other settings.
        left: the share of its work that is left, if it resumes from its scratch.
        looks_neutral: whether only names, places, documentation, hints or messages seem to differ
            from the code that made an artifact; see :func:`~pipeline.observed.neutral_trace`.
    """

    step: Step
    state: State
    reason: str
    key: str | None = None
    manifest: Manifest | None = None
    may_match: bool = False
    left: float = 1.0
    looks_neutral: bool = False


@dataclass(frozen=True)
class Plan:
    """Every step of the DAG, in topological order.

    Attributes:
        roots: the results that were asked for, by name.
        unusable: attempts whose artifacts must be made again, each with the reason.
        forced: fingerprints of steps to run again although they are cached.
    """

    roots: Mapping[str, Step]
    steps: tuple[PlannedStep, ...]
    unusable: Mapping[str, str] = field(default_factory=dict)
    forced: frozenset[str] = frozenset()

    def in_state(self, *states: State) -> list[PlannedStep]:
        return [planned for planned in self.steps if planned.state in states]

    def manifests(self) -> dict[str, Manifest]:
        """The artifact of every cached step, by fingerprint."""
        return {p.step.fingerprint: p.manifest for p in self.steps if p.manifest is not None}

    @functools.cached_property
    def labels(self) -> Mapping[str, str]:
        """The label of each step, by fingerprint; it distinguishes the step from others of its
        name."""
        results = {
            step.fingerprint: name.removeprefix(f"{step.name} ")
            for name, step in reversed([*self.roots.items()])
            if name != step.name
        }
        with _no_collection():
            return labels([planned.step for planned in self.steps], results)

    @property
    def is_complete(self) -> bool:
        return all(planned.state is State.CACHED for planned in self.steps)

    def _repr_html_(self) -> str:
        """Every step with its state and the reason, for notebooks."""
        from pipeline.base.html import table

        names = display_names(self)
        rows = [(names[p.step.fingerprint], p.state.value, p.reason) for p in self.steps]
        return table(("step", "plan", "why"), rows)


def display_names(plan: Plan) -> dict[str, str]:
    """The display name of each step, by fingerprint: its name and its label."""
    return {
        planned.step.fingerprint: f"{planned.step.name} ({label})" if label else planned.step.name
        for planned in plan.steps
        for label in [plan.labels[planned.step.fingerprint]]
    }


def topological(roots: Iterable[Step]) -> list[Step]:
    """Every step that the roots need, in topological order. Equal steps occur once; if one of them
    has a label, that one is returned."""
    order: dict[str, Step] = {}
    pending = [*reversed(list(roots))]
    while pending:
        step = pending[-1]
        missing = [i.step for i in step.inputs if i.step.fingerprint not in order]
        if step.fingerprint in order:
            _prefer_named(order, pending.pop())
        elif missing:
            pending.extend(reversed(missing))
        else:
            order[step.fingerprint] = pending.pop()
            for reference in step.inputs:
                _prefer_named(order, reference.step)
    return list(order.values())


def _prefer_named(order: dict[str, Step], step: Step) -> None:
    if step.label and not order[step.fingerprint].label:
        order[step.fingerprint] = step


def make_plan(
    roots: Mapping[str, Step],
    store: Store,
    force: Collection[str] = (),
    catalog: Catalog | None = None,
    run: str = "",
    experiment: str = "",
    present: Present | None = None,
) -> Plan:
    """Compute the state of every step that the roots need. It runs nothing and writes nothing.

    Args:
        force: names of steps (``STEP`` or ``STEP@KEY``) to run again although they are cached,
            unless the run ``run`` made them.
        experiment: to explain why a step runs, prefer to compare with artifacts of this experiment.
        present: the current state of discovered dependencies, if it is known already.

    Raises:
        TemperError: the store cannot be read, no step has a name in ``force``, or two steps
            have the same name and version, so their keys could be equal.
    """
    store.check_layout()
    steps = topological(roots.values())
    _require_one_function_a_name([*roots.values(), *steps])
    catalog, present = catalog or Catalog(store), present or Present()

    def planned(forced: frozenset[str] = frozenset()) -> Plan:
        return _planned(_Planner(catalog, steps, forced, run, experiment, present), roots, forced)

    with _no_collection():
        plan = planned()
        wanted = steps_named(plan, force, "force")
        return planned(frozenset(step.fingerprint for step in wanted)) if wanted else plan


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector: a plan makes very many small objects and hardly any reference
    cycle, and the search for cycles takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _planned(planner: "_Planner", roots: Mapping[str, Step], forced: frozenset[str]) -> Plan:
    """Plan again until no needed artifact turns out to have lost its data."""
    unusable: dict[str, str] = {}
    while True:
        planned = planner.plan(unusable)
        lost = planner.lost(planned, [step.fingerprint for step in roots.values()])
        if not lost.keys() - unusable.keys():
            return Plan(dict(roots), tuple(planned.values()), unusable, forced)
        unusable |= lost


def _require_one_function_a_name(steps: Collection[Step]) -> None:
    """Refuse two functions with one name and version: their keys could not differ."""
    known: dict[tuple[str, str | None], StepFunction] = {}
    inputs = (reference.step for step in steps for reference in step.inputs)
    for step in itertools.chain(steps, inputs):
        function = step.function
        other = known.setdefault((function.name, function.version), function)
        if other.reference != function.reference:
            raise TemperError(
                f"{other.reference} and {function.reference} are two steps called {function.name}; "
                'give one of them another name, as in @step(name="…")'
            )


def steps_named(plan: Plan, names: Collection[str], option: str) -> list[Step]:
    """The steps of a plan with these names: ``STEP``, or ``STEP@KEY`` with a beginning of the key,
    or of the fingerprint, which stands for the key while an input is not known.

    Args:
        option: the option that has the names, for the error.

    Raises:
        TemperError: no step has one of the names.
    """
    found: dict[str, Step] = {}
    for name in names:
        wanted, _, prefix = name.partition("@")
        steps = [
            p.step
            for p in plan.steps
            if p.step.name == wanted
            and (p.step.fingerprint.startswith(prefix) or (p.key or "").startswith(prefix))
        ]
        if not steps:
            known = ", ".join(dict.fromkeys(p.step.name for p in plan.steps))
            raise TemperError(
                f"{option}: there is no step {name} in this experiment; it has: {known}"
            )
        found |= {step.fingerprint: step for step in steps}
    return [*found.values()]


class _Planner:
    """Plans one DAG, and plans it again when artifacts turn out to have lost their data."""

    def __init__(
        self,
        catalog: Catalog,
        steps: list[Step],
        forced: frozenset[str],
        run: str,
        experiment: str,
        present: Present,
    ):
        self.catalog, self.store = catalog, catalog.store
        self.steps, self.forced, self.run = steps, forced, run
        self.experiment = experiment
        self._unfinished = Unfinished(self.store)
        self._remade: dict[str, str] = {}  # fingerprint of a step to make again: the reason
        self._histories: dict[str, History] = {}
        self._same_calls: dict[str, frozenset[str]] = {}  # keys of earlier artifacts
        self._held: dict[str, Mapping[str, str]] = {}
        self._present = present

    def plan(self, unusable: Mapping[str, str]) -> dict[str, PlannedStep]:
        resolver = Resolver(self.catalog, unusable, self.forced, self.run, present=self._present)
        planned: dict[str, PlannedStep] = {}
        for step in self.steps:
            known = all(planned[i.step.fingerprint].manifest for i in step.inputs)
            manifest = resolver.artifact(step) if known else None
            if manifest is not None:
                note = _note(step, manifest, resolver)
                done = PlannedStep(step, State.CACHED, note, manifest.key, manifest)
                planned[step.fingerprint] = done
                continue
            resolved = resolver.key_and_recipe(step) if known else None
            planned[step.fingerprint] = self._missing(step, resolved, planned, resolver)
        return planned

    def lost(self, planned: Mapping[str, PlannedStep], roots: Collection[str]) -> dict[str, str]:
        """Cached artifacts whose bytes are needed and missing: the reason, by attempt."""
        needed = dict.fromkeys(roots, "it is a result")
        for reference in [base for root in roots for base in bases_of(Input(planned[root].step))]:
            needed.setdefault(reference.step.fingerprint, "a result rests on it")
        for step in planned.values():
            if step.state in (State.RUN, State.BLOCKED) and not step.may_match:
                for reference in step.step.inputs:
                    needed.setdefault(reference.step.fingerprint, f"needed by {step.step.name}")
        made = {f: m for f in needed if (m := planned[f].manifest) is not None}
        marked = {m.attempt: loss for m in made.values() if (loss := self.catalog.loss(m))}
        gone = self.store.lost_among(m for m in made.values() if m.attempt not in marked)
        lost = {}
        for fingerprint, manifest in made.items():
            if manifest.attempt in marked:
                what = f"its data is {marked[manifest.attempt].value}"
            elif manifest.attempt in gone:
                what = f"it has lost {', '.join(gone[manifest.attempt][:3])}"
            else:
                continue
            lost[manifest.attempt] = f"{what}; {needed[fingerprint]}"
            self._remade[fingerprint] = lost[manifest.attempt]
        return lost

    def _missing(
        self,
        step: Step,
        resolved: tuple[str, Json] | None,
        planned: Mapping[str, PlannedStep],
        resolver: Resolver,
    ) -> PlannedStep:
        key = resolved[0] if resolved else None
        if key is not None and (holder := self._holders(step.name).get(key)):
            return PlannedStep(step, State.BLOCKED, f"being made by {holder}", key)
        if step.fingerprint in self.forced:
            made = PlannedStep(step, State.RUN, "forced", key)
        elif step.fingerprint in self._remade:
            made = PlannedStep(step, State.RUN, self._remade[step.fingerprint], key)
        else:
            made = self._changed(step, key, planned, resolver)
        if key is None:
            return made
        why, left = self._unfinished.of(step.name, key, lambda at: self._outdating(step, at))
        return replace(made, reason=f"{made.reason}; {why}", left=left) if why else made

    def _outdating(self, step: Step, scratch: Path) -> list[str]:
        """Why the next attempt at a step will not use the results in its scratch, in words."""
        if step.function.version is not None:
            return []
        with contextlib.suppress(OSError):  # a run may delete the folder at any time
            home = home_of(step.function, step.portable_arguments, step.type_names)
            return what_results_need(scratch, home, self._present)[1]
        return []

    def _changed(
        self,
        step: Step,
        key: str | None,
        planned: Mapping[str, PlannedStep],
        resolver: Resolver,
    ) -> PlannedStep:
        waiting = [i for i in step.inputs if planned[i.step.fingerprint].manifest is None]
        unknown = {reference: f"unknown {reference}" for reference in waiting}

        def digest_of(reference: Input) -> str:
            if reference in unknown:
                return unknown[reference]
            manifest = planned[reference.step.fingerprint].manifest
            assert manifest is not None  # cached, as `waiting` holds all the others
            return manifest.digest_of(reference.part)

        names = {digest_of(reference): str(reference) for reference in step.inputs}
        recipe = step.recipe(digest_of)

        close = self._history(step).nearest(recipe, names, self.experiment)
        known = key or (close.manifest.key if close else "")
        outdated = self._outdated(step, known, resolver)
        only_code = key is not None or (close is not None and close.only_inputs)
        neutral = bool(outdated) and only_code and self._looks_neutral(step, known, resolver)
        if not waiting:
            reason = explain(close, more=outdated)
            return PlannedStep(step, State.RUN, reason, key, looks_neutral=neutral)
        above = ", ".join(dict.fromkeys(reference.step.name for reference in waiting))
        expected = {str(reference) for reference in waiting}
        only_inputs = close is not None and close.only_inputs and not outdated
        may_match = close is not None and only_inputs and set(close.changed_inputs) == expected
        if may_match and self._of_same_call(step):
            return PlannedStep(step, State.MAYBE, f"if the output of {above} changes")
        changes = explain(close, expected, outdated) if close else ""
        reason = f"after {above}; {changes}" if changes else f"after {above}"
        return PlannedStep(step, State.RUN, reason, may_match=may_match, looks_neutral=neutral)

    def _of_same_call(self, step: Step) -> frozenset[str]:
        """The keys of the earlier artifacts of the same call: they and all artifacts above them
        differ from it and from the steps above it only in code and in the content of files."""
        pending = [step]
        while pending:
            one = pending[-1]
            above = [i.step for i in one.inputs if i.step.fingerprint not in self._same_calls]
            pending += above
            if not above:
                keys = [(i.part, self._same_calls[i.step.fingerprint]) for i in one.inputs]
                recipe = one.recipe(lambda _: "")
                self._same_calls[one.fingerprint] = self._history(one).of_call(recipe, keys)
                pending.pop()
        return self._same_calls[step.fingerprint]

    def _outdated(self, step: Step, key: str, resolver: Resolver) -> list[str]:
        """The discovered dependencies whose changes make every artifact of a key invalid."""
        found: list[str] = []
        for made in resolver.made(step, key):
            if not (changes := resolver.outdated(step, made)):
                return []
            found = found or changes  # the changes since the latest artifact
        return found

    def _looks_neutral(self, step: Step, key: str, resolver: Resolver) -> bool:
        home = home_of(step.function, step.portable_arguments, step.type_names)
        return any(resolver.looks_neutral(home, made) for made in resolver.made(step, key))

    def _history(self, step: Step) -> History:
        if step.name not in self._histories:
            names = (*reversed(step.function.was), step.name)
            made = [manifest for name in names for manifest in self.catalog.history(name)]
            made.sort(key=lambda manifest: manifest.attempt)
            self._histories[step.name] = History(made)
        return self._histories[step.name]

    def _holders(self, step: str) -> Mapping[str, str]:
        """The holder of the lease on each key of a step, in words."""
        if step not in self._held:
            with self.store.reading(f"{self.store.root}/leases/{step}"):
                holders = Leases(self.store.objects, self.store.root, run="").holders(step)
            self._held[step] = {
                key: f"{holder.host} (pid {holder.pid}, run {holder.run}) since {holder.since}"
                for key, holder in holders.items()
            }
        return self._held[step]


def _note(step: Step, manifest: Manifest, resolver: Resolver) -> str:
    """A remark on a cached step: its former name, or changes that its version hides."""
    if record_of(step):
        return "made by an earlier run, as it was named"
    earlier = f"made when it was called {manifest.step}" if manifest.step != step.name else ""
    return "; ".join(filter(None, (earlier, _drift(step, manifest, resolver))))


def _drift(step: Step, manifest: Manifest, resolver: Resolver) -> str:
    """For a step with a declared version: what has changed since its artifact was made."""
    if step.function.version is None:
        return ""
    changes = resolver.changes(step, manifest) if manifest.discovered else []
    if not changes:
        return ""
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    what = f"what it depends on differs ({changes[0]}{more})"
    return f"{what}, version {step.function.version!r} does not"
