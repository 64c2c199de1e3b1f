"""The plan: every step of a DAG with its state, before anything runs.

A step's key needs the digests of its inputs, so states are worked out from the sources down:

- ``cached``: every input is known and the key has a manifest;
- ``run``: every input is known and the key has none, or an input is not known yet and no earlier
  artifact could match, whatever it turns out to be;
- ``maybe``: an input is not known yet, and an earlier artifact was made by the same recipe from
  other input bytes: if the inputs turn out to be those, nothing runs (early cutoff);
- ``blocked``: it would run, but another driver is making it now; a run waits for that one.

An artifact whose data is evicted, lost or damaged still says what its step's digest is, so what
was made from it stays cached. It is made again only if somebody needs the bytes: it is a result,
or an input of a step that runs. Looking costs a few requests per step name.
"""

import enum
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.accepted import equal_states
from pipeline.canonical import Json, hash_json
from pipeline.catalog import Catalog
from pipeline.errors import TemperError
from pipeline.lease import Leases
from pipeline.manifest import Manifest
from pipeline.step import Input, Step
from pipeline.store import Store
from pipeline.why import History, Nearest, code_changes, explain


class State(enum.Enum):
    CACHED = "cached"
    RUN = "run"
    MAYBE = "maybe"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class PlannedStep:
    """A step, its state and why.

    Attributes:
        key: where its artifact is or will be; ``None`` while an input is not known.
        manifest: its artifact, when cached.
    """

    step: Step
    state: State
    reason: str
    key: str | None = None
    manifest: Manifest | None = None


@dataclass(frozen=True)
class Plan:
    """Every step of the DAG in an order in which they can run.

    Attributes:
        roots: what was asked for.
        unusable: attempts whose artifacts are to be made again, each with why.
        forced: fingerprints of steps to run again although they are cached.
    """

    roots: Mapping[str, Step]
    steps: tuple[PlannedStep, ...]
    unusable: Mapping[str, str] = field(default_factory=dict)
    forced: frozenset[str] = frozenset()

    def in_state(self, *states: State) -> list[PlannedStep]:
        return [planned for planned in self.steps if planned.state in states]

    def manifests(self) -> dict[str, Manifest]:
        """The artifact of every step that is cached, by fingerprint."""
        return {p.step.fingerprint: p.manifest for p in self.steps if p.manifest is not None}

    @property
    def is_complete(self) -> bool:
        return all(planned.state is State.CACHED for planned in self.steps)

    def _repr_html_(self) -> str:
        from pipeline.notebook import plan_html

        return plan_html(self)


class Resolver:
    """Finds the artifact a step stands for.

    Only what exists is remembered: what is missing now may be committed a moment later, perhaps
    by another driver.

    Args:
        unusable: attempts whose artifacts must be made again.
        forced: fingerprints of steps that only an artifact made in the run ``run`` satisfies.
        live: ask the store for what was not there when its steps were listed.
    """

    def __init__(
        self,
        catalog: Catalog,
        unusable: Container[str] = (),
        forced: Container[str] = (),
        run: str = "",
        live: bool = False,
    ):
        self.catalog = catalog
        self.store = catalog.store
        self._unusable, self._forced = unusable, forced
        self._run, self._live = run, live
        self._found: dict[str, Manifest] = {}
        self._accepted: dict[str, list[tuple[Json, Json]]] = {}

    def artifact(self, step: Step) -> Manifest | None:
        """The committed artifact of a step, or ``None``. Its inputs are looked up first."""
        pending = [step]
        while pending:
            needed = pending[-1]
            unknown = [i.step for i in needed.inputs if i.step.fingerprint not in self._found]
            if unknown:
                pending.append(unknown[0])
            elif (found := self._committed(needed)) is None:
                return None  # and so whatever needs it has none either
            else:
                self._found[needed.fingerprint] = found
                pending.pop()
        return self._found[step.fingerprint]

    def artifacts(self, steps: Iterable[Step]) -> dict[str, Manifest]:
        """The committed artifacts of those steps that have one, by fingerprint."""
        found = {step.fingerprint: self.artifact(step) for step in steps}
        return {fingerprint: made for fingerprint, made in found.items() if made is not None}

    def key_and_recipe(self, step: Step) -> tuple[str, Json] | None:
        """The key of a step and what it is the hash of; ``None`` if an input is not known yet to
        :meth:`artifact`."""
        known = {i: self._found.get(i.step.fingerprint) for i in step.inputs}
        digests = {i: m.digest_of(i.part) for i, m in known.items() if m is not None}
        if len(digests) < len(known):
            return None
        recipe = step.recipe(digests.__getitem__)
        return hash_json(recipe), recipe

    def current_key_and_recipe(self, step: Step) -> tuple[str, Json] | None:
        """:meth:`key_and_recipe`, with inputs looked up that may have been made a moment ago."""
        for reference in step.inputs:
            self.artifact(reference.step)
        return self.key_and_recipe(step)

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

    def _committed(self, step: Step) -> Manifest | None:
        resolved = self.key_and_recipe(step)
        if resolved is None:
            return None
        return self._usable(step, resolved[0]) or next(
            filter(None, (self._usable(step, key) for key in self._equivalent_keys(step))), None
        )

    def _usable(self, step: Step, key: str) -> Manifest | None:
        manifest = self.catalog.latest(step.name, key)
        if self._live and (manifest is None or not self._is_usable(step, manifest)):
            manifest = self.catalog.look(step.name, key)  # made, or made again, since it was listed
        return manifest if manifest and self._is_usable(step, manifest) else None

    def _is_usable(self, step: Step, manifest: Manifest) -> bool:
        if step.fingerprint in self._forced and manifest.provenance.get("run") != self._run:
            return False
        return manifest.attempt not in self._unusable

    def accepted(self, step: Step) -> list[Json]:
        """What may stand for a step's code in a recipe: the present code, and what was accepted as
        equivalent to it, also by way of others."""
        if step.name not in self._accepted:
            self._accepted[step.name] = self.store.accepted(step.name)
        return equal_states(step.made_by, self._accepted[step.name])

    def _equivalent_keys(self, step: Step) -> list[str]:
        def digest_of(reference: Input) -> str:
            return self._found[reference.step.fingerprint].digest_of(reference.part)

        return [hash_json(step.recipe(digest_of, made_by)) for made_by in self.accepted(step)[1:]]  # type: ignore[arg-type]


def topological(roots: Iterable[Step]) -> list[Step]:
    """Every step that the roots need, each recipe once, inputs before what uses them."""
    order: dict[str, Step] = {}
    pending = [*reversed(list(roots))]
    while pending:
        step = pending[-1]
        missing = [i.step for i in step.inputs if i.step.fingerprint not in order]
        if step.fingerprint in order:
            pending.pop()
        elif missing:
            pending.extend(reversed(missing))
        else:
            order[step.fingerprint] = pending.pop()
    return list(order.values())


def make_plan(
    roots: Mapping[str, Step],
    store: Store,
    force: Collection[str] = (),
    catalog: Catalog | None = None,
    run: str = "",
) -> Plan:
    """Work out the state of every step the roots need. Runs nothing, writes nothing.

    Args:
        force: names of steps to run again although they are cached, unless the run ``run`` did.

    Raises:
        TemperError: the store cannot be read, or no step has a name in ``force``.
    """
    store.check_layout()
    steps = topological(roots.values())
    forced = forced_fingerprints(steps, force)
    planner = _Planner(catalog or Catalog(store), steps, forced, run)
    unusable: dict[str, str] = {}
    while True:
        planned = planner.plan(unusable)
        lost = planner.lost(planned, [step.fingerprint for step in roots.values()])
        if not lost.keys() - unusable.keys():
            return Plan(dict(roots), tuple(planned.values()), unusable, forced)
        unusable |= lost


def forced_fingerprints(steps: Iterable[Step], names: Collection[str]) -> frozenset[str]:
    """The steps with one of these names.

    Raises:
        TemperError: no step has one of the names.
    """
    steps = list(steps)
    present = {step.name for step in steps}
    if unknown := set(names) - present:
        raise TemperError(
            f"force: there is no step {', '.join(sorted(unknown))} in this experiment; "
            f"it has: {', '.join(sorted(present))}"
        )
    return frozenset(step.fingerprint for step in steps if step.name in names)


class _Planner:
    """Plans one DAG, again whenever artifacts turn out to have lost their data."""

    def __init__(self, catalog: Catalog, steps: list[Step], forced: frozenset[str], run: str):
        self.catalog, self.store = catalog, catalog.store
        self.steps, self.forced, self.run = steps, forced, run
        self._remade: dict[str, str] = {}  # fingerprint: why
        self._histories: dict[str, History] = {}
        self._held: dict[str, Mapping[str, str]] = {}

    def plan(self, unusable: Mapping[str, str]) -> dict[str, PlannedStep]:
        resolver = Resolver(self.catalog, unusable, self.forced, self.run)
        planned: dict[str, PlannedStep] = {}
        for step in self.steps:
            known = all(planned[i.step.fingerprint].manifest for i in step.inputs)
            manifest = resolver.artifact(step) if known else None
            if manifest is not None:
                done = PlannedStep(
                    step, State.CACHED, _drift(step, manifest), manifest.key, manifest
                )
                planned[step.fingerprint] = done
                continue
            resolved = resolver.key_and_recipe(step) if known else None
            planned[step.fingerprint] = self._missing(step, resolved, planned, resolver)
        return planned

    def lost(self, planned: Mapping[str, PlannedStep], roots: Iterable[str]) -> dict[str, str]:
        """Cached artifacts whose bytes are needed and not there, by attempt, with why."""
        needed = dict.fromkeys(roots, "it is a result")
        for step in planned.values():
            if step.state in (State.RUN, State.BLOCKED):
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
            return PlannedStep(step, State.RUN, "forced", key)
        if step.fingerprint in self._remade:
            return PlannedStep(step, State.RUN, self._remade[step.fingerprint], key)
        return self._changed(step, key, planned, resolver)

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
        close = self._nearest(step, step.recipe(digest_of), names, resolver)
        if not waiting:
            return PlannedStep(step, State.RUN, explain(close), key)
        after = "after " + ", ".join(dict.fromkeys(reference.step.name for reference in waiting))
        expected = {str(reference) for reference in waiting}
        if close is not None and close.only_inputs and set(close.changed_inputs) == expected:
            return PlannedStep(step, State.MAYBE, f"{after}, unless that makes what it made before")
        changes = explain(close, expected) if close else ""
        return PlannedStep(step, State.RUN, f"{after}; {changes}" if changes else after)

    def _nearest(
        self, step: Step, recipe: Json, names: Mapping[str, str], resolver: Resolver
    ) -> Nearest | None:
        if step.name not in self._histories:
            self._histories[step.name] = History(self.catalog.history(step.name))
        return self._histories[step.name].nearest(recipe, step.code, names, resolver.accepted(step))

    def _holders(self, step: str) -> Mapping[str, str]:
        """Who holds a lease on which key, in words."""
        if step not in self._held:
            with self.store.reading(f"{self.store.root}/leases/{step}"):
                holders = Leases(self.store.objects, self.store.root, run="").holders(step)
            self._held[step] = {
                key: f"{holder.host} (pid {holder.pid}, run {holder.run}) since {holder.since}"
                for key, holder in holders.items()
            }
        return self._held[step]


def _drift(step: Step, manifest: Manifest) -> str:
    """For a step that declares a version: which code changed since its artifact was made."""
    if step.function.version is None or not manifest.code or not step.code:
        return ""
    changes = code_changes(manifest.code, step.code)
    if not changes:
        return ""
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"code differs ({changes[0]}{more}), version {step.function.version!r} does not"
