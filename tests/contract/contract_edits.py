"""What can happen between two runs, as small values that read well in a counterexample.

An edit of what the author has written changes the :class:`~contract_model.World`; one of the store
changes the store and the :class:`~contract_model.Model` alike. Each can be applied to any world: a
node is named by a number, which counts from the start again where there are fewer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from contract_lab import Crash, Lab, Stage
from contract_model import (
    ADDED,
    BEFORE,
    DEFAULTS,
    HASHED,
    MODULES,
    PARTS,
    REACHED,
    SETTINGS,
    Identity,
    Literal,
    Model,
    Node,
    Values,
    World,
)
from hypothesis import strategies as st

from pipeline.observed.discovery import Present, home_of
from pipeline.observed.neutral import accepted_trace


class Edit:
    """Something that happens between two runs."""

    def write(self, world: World) -> World:
        return world

    def strike(self, world: World, model: Model, lab: Lab) -> None:
        """What happens to the store."""


# --- what the author edits -----------------------------------------------------------------------


@dataclass(frozen=True)
class EditCode(Edit):
    unit: str
    value: int

    def write(self, world: World) -> World:
        return world.revised(code={**world.code, self.unit: self.value})


@dataclass(frozen=True)
class Refactor(Edit):
    """Another body with the same meaning."""

    function: str
    value: int

    def write(self, world: World) -> World:
        return world.revised(refactored={**world.refactored, self.function: self.value})


@dataclass(frozen=True)
class Rephrase(Edit):
    """Other comments and layout."""

    module: str
    phrasing: int

    def write(self, world: World) -> World:
        return world.revised(phrasing={**world.phrasing, self.module: self.phrasing})


@dataclass(frozen=True)
class EditDefault(Edit):
    name: str
    value: int

    def write(self, world: World) -> World:
        return world.revised(defaults={**world.defaults, self.name: self.value})


@dataclass(frozen=True)
class EditSetting(Edit):
    """A setting of one node; ``None`` leaves it to its default."""

    node: int
    name: str
    value: int | None

    def write(self, world: World) -> World:
        number = self.node % len(world.nodes)
        node = world.nodes[number]
        if self.name not in SETTINGS[node.function]:
            return world
        given = {name: value for name, value in node.given.items() if name != self.name}
        if self.value is not None:
            given[self.name] = self.value
        return _with_node(world, number, replace(node, given=given))


@dataclass(frozen=True)
class ToggleNested(Edit):
    node: int

    def write(self, world: World) -> World:
        number = self.node % len(world.nodes)
        node = world.nodes[number]
        if node.function != "scale":
            return world
        return _with_node(world, number, replace(node, nested=not node.nested))


@dataclass(frozen=True)
class EditDetails(Edit):
    """Other execution details."""

    value: int

    def write(self, world: World) -> World:
        return world.revised(details=self.value)


@dataclass(frozen=True)
class EditFile(Edit):
    """Other bytes; see :attr:`Transition.sneaky` for the times."""

    file: int
    values: Values

    def write(self, world: World) -> World:
        files = list(world.files)
        files[self.file] = self.values
        return world.revised(files=tuple(files))


@dataclass(frozen=True)
class MoveFiles(Edit):
    """The same bytes elsewhere."""

    def write(self, world: World) -> World:
        return world.revised(moved=world.moved + 1)


@dataclass(frozen=True)
class Grow(Edit):
    """A field or parameter that was added later, with its default; ``None`` takes it out again."""

    name: str
    default: int | None

    def write(self, world: World) -> World:
        added = {name: value for name, value in world.added.items() if name != self.name}
        if self.default is not None:
            added[self.name] = self.default
        return world.revised(added=added)


@dataclass(frozen=True)
class Declare(Edit):
    version: int

    def write(self, world: World) -> World:
        return world.revised(version=self.version)


@dataclass(frozen=True)
class Rewire(Edit):
    """Other results are wanted."""

    roots: tuple[int, ...]

    def write(self, world: World) -> World:
        return world.revised(roots=_roots(self.roots, world.nodes))


@dataclass(frozen=True)
class Revert(Edit):
    """All that is written, as it was some transitions ago."""

    back: int


# --- what happens to the store -------------------------------------------------------------------


@dataclass(frozen=True)
class _OfArtifact(Edit):
    node: int

    def strike(self, world: World, model: Model, lab: Lab) -> None:
        identity = world.identity(self.node % len(world.nodes))
        if identity in model.damaged and identity not in model.gone:
            self.hit(identity, model, lab)

    def hit(self, identity: Identity, model: Model, lab: Lab) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Evict(_OfArtifact):
    def hit(self, identity: Identity, model: Model, lab: Lab) -> None:
        lab.store.evict(lab.made[identity])
        model.gone.add(identity)


@dataclass(frozen=True)
class LoseFile(_OfArtifact):
    part: str

    def hit(self, identity: Identity, model: Model, lab: Lab) -> None:
        (lab.content_folder(identity) / self.part / "values.json").unlink()
        model.gone.add(identity)


@dataclass(frozen=True)
class CutFile(_OfArtifact):
    part: str

    def hit(self, identity: Identity, model: Model, lab: Lab) -> None:
        path = lab.content_folder(identity) / self.part / "values.json"
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1])
        model.gone.add(identity)


@dataclass(frozen=True)
class Corrupt(_OfArtifact):
    """Other bytes, as many as before: seen by who reads them."""

    part: str

    def hit(self, identity: Identity, model: Model, lab: Lab) -> None:
        path = lab.content_folder(identity) / self.part / "values.json"
        if self.part in model.damaged[identity]:
            return
        before = path.read_bytes()
        after = before.translate(bytes.maketrans(b"012", b"120"))
        if after != before:
            path.chmod(0o644)
            path.write_bytes(after)
            model.damaged[identity].add(self.part)


@dataclass(frozen=True)
class Forget(_OfArtifact):
    """Every manifest of a key is deleted by hand."""

    def hit(self, identity: Identity, model: Model, lab: Lab) -> None:
        gone = lab.made[identity]
        for path in (lab.folder / "store" / "manifests" / gone.step).glob(f"{gone.key}*"):
            path.unlink()
        for made in [made for made in model.damaged if made.key == identity.key]:
            del model.damaged[made]


@dataclass(frozen=True)
class SpoilIndex(Edit):
    """The copies of manifests that are kept for speed."""

    text: str

    def strike(self, world: World, model: Model, lab: Lab) -> None:
        for path in (lab.folder / "store" / "index").glob("*.json"):
            path.write_text(self.text)


@dataclass(frozen=True)
class Accept(Edit):
    """The code of a node as it is now gives what an artifact holds that was made before a refactor
    of it: the last that there is."""

    node: int

    def strike(self, world: World, model: Model, lab: Lab) -> None:
        number = self.node % len(world.nodes)
        identity = world.identity(number)
        if identity.function not in HASHED:
            return  # a version that was raised without need is not in this world
        for made in reversed(model.damaged):
            same = (made.function, made.meaning) == (identity.function, identity.meaning)
            if same and made.made_by != identity.made_by:
                step, trace = lab.steps(world)[number], lab.made[made].discovered
                home = home_of(step.function, step.portable_arguments, step.type_names)
                now = accepted_trace(home, Present().state(home, trace))
                lab.store.accept(step.name, trace.state, now, {})
                model.accepted.add((identity.function, made.made_by, world.all_code))
                return


# --- strategies ----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Transition(Literal):
    """Some edits, and a run.

    Attributes:
        sneaky: edited input files keep their times.
        force: a step function whose nodes run again.
    """

    edits: tuple[Edit, ...] = ()
    sneaky: bool = False
    force: str | None = None
    crash: Crash | None = None


def _with_node(world: World, number: int, node: Node) -> World:
    return world.revised(nodes=(*world.nodes[:number], node, *world.nodes[number + 1 :]))


def _roots(wanted: tuple[int, ...], nodes: tuple[Node, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(number % len(nodes) for number in wanted))


small = st.integers(0, 4)
numbers = st.integers(0, 7)
parts = st.sampled_from(PARTS)
values = st.lists(st.integers(0, 3), min_size=2, max_size=4).map(tuple)
functions = st.sampled_from((*HASHED, "fold"))


def meaningful(world: World) -> st.SearchStrategy[Edit]:
    """Edits that mostly bear on some result."""
    functions = {node.function for node in world.nodes}
    read = st.sampled_from([node.source for node in world.nodes if node.function == "load"])
    grown = st.sampled_from([None, BEFORE, BEFORE, 1, 2])
    kinds = [
        *(of_node(number, node.function) for number, node in enumerate(world.nodes)),
        st.builds(_edit_default, st.sampled_from(DEFAULTS), small),
        st.builds(EditFile, read, values),
        st.builds(EditFile, read, values),
        st.builds(Rewire, st.lists(numbers, min_size=1, max_size=3).map(tuple)),
        st.builds(Revert, st.integers(1, 6)),
    ]
    if "scale" in functions:
        kinds.append(st.builds(Grow, st.just("extra"), grown))
    for function in sorted(functions & {"merge", "fold"}):
        kinds.append(st.builds(Grow, st.just(f"{function} bonus"), grown))
    return st.one_of(kinds)


@cache
def of_node(number: int, function: str) -> st.SearchStrategy[Edit]:
    """Edits that bear on what one node makes."""
    settings = st.sampled_from([(number, name) for name in SETTINGS[function]])
    kinds: list[st.SearchStrategy[Edit]] = [
        st.builds(_edit_setting, settings, small),
        st.builds(_edit_setting, settings, st.none() | small),
    ]
    if function == "fold":
        kinds.append(st.builds(Declare, st.integers(1, 3)))
    else:
        kinds.append(st.builds(EditCode, st.sampled_from(REACHED[function]), small))
    if function == "scale":
        kinds.append(st.builds(ToggleNested, st.just(number)))
        kinds.append(st.builds(EditCode, st.just("inner method"), small))
        kinds.append(st.builds(Grow, st.just("extra"), st.sampled_from([None, BEFORE])))
    return st.one_of(kinds)


@st.composite
def needed_losses(draw: st.DrawFn, world: World) -> list[Edit]:
    """A step has to run, and an input of it is not what it was."""
    users = [(number, node) for number, node in enumerate(world.nodes) if node.inputs]
    if not users:
        return []
    number, node = draw(st.sampled_from(users))
    upstream, part = draw(st.sampled_from(node.inputs))
    part = part or draw(parts)
    kinds = [Evict(upstream), LoseFile(upstream, part), *[Corrupt(upstream, part)] * 2]
    return [draw(st.sampled_from(kinds)), draw(of_node(number, node.function))]


idle: st.SearchStrategy[Edit] = st.one_of(
    st.builds(EditCode, st.just("unrelated"), small),
    st.builds(Rephrase, st.sampled_from(MODULES), st.integers(0, 3)),
    st.builds(EditDetails, small),
    st.builds(MoveFiles),
)
"""Edits that bear on no result."""

losses: st.SearchStrategy[Edit] = st.one_of(
    st.builds(Evict, numbers),
    st.builds(LoseFile, numbers, parts),
    st.builds(CutFile, numbers, parts),
    st.builds(Corrupt, numbers, parts),
    st.builds(Forget, numbers),
    st.builds(SpoilIndex, st.sampled_from(["", "{}", "[]", '{"a": 1}'])),
)


@st.composite
def accepted_refactors(draw: st.DrawFn) -> list[Edit]:
    """A refactor, and that it changes nothing, is rarely drawn by chance."""
    refactor = Refactor(draw(functions), draw(st.integers(0, 2)))
    return [refactor, *draw(st.lists(st.builds(Accept, numbers), max_size=3))]


crashes = st.builds(Crash, st.sampled_from(Stage), st.sampled_from([0, 0, 0, 1, 1, 2, 3]))


def edits(world: World) -> st.SearchStrategy[list[Edit]]:
    some = meaningful(world)
    return (
        st.lists(some, min_size=1, max_size=2)
        | st.lists(idle, max_size=2)
        | st.lists(losses, min_size=1, max_size=2)
        | needed_losses(world)
        | accepted_refactors()
        | st.tuples(accepted_refactors(), losses | some).map(lambda drawn: [*drawn[0], drawn[1]])
    )


@st.composite
def transitions(draw: st.DrawFn, edits: st.SearchStrategy[list[Edit]]) -> Transition:
    kind = draw(st.sampled_from(["run", "run", "run", "force", "crash", "crash"]))
    return Transition(
        tuple(draw(edits)),
        draw(st.booleans()),
        draw(functions) if kind == "force" else None,
        draw(crashes) if kind == "crash" else None,
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[World, list[Transition]]:
    world = draw(worlds())
    return world, draw(st.lists(transitions(edits(world)), min_size=2, max_size=24))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A DAG whose first node reads a file; each other reads files or what comes before it."""
    nodes: list[Node] = []
    for number in range(draw(st.integers(3, 6))):
        kinds = st.sampled_from(["scale", "merge", "fold", "scale", "merge", "load"])
        nodes.append(_node(draw, draw(kinds) if number else "load", number))
    everything = tuple(nodes)
    used = {upstream for node in nodes for upstream, _ in node.inputs}
    unused = [number for number in range(len(nodes)) if number not in used]
    also = draw(st.lists(st.integers(0, len(nodes) - 1), max_size=1))
    return World(
        everything,
        _roots((*unused, *also), everything),
        added={name: draw(st.integers(0, 2)) for name in ADDED if draw(st.booleans())},
    )


def _node(draw: st.DrawFn, function: str, number: int) -> Node:
    last = max(number - 1, 0)
    earlier = st.tuples(st.integers(0, last) | st.just(last), st.sampled_from([None, *PARTS]))
    count: Mapping[str, Any] = {"load": 0, "scale": 1, "fold": 2, "merge": draw(st.integers(1, 3))}
    inputs = tuple(draw(earlier) for _ in range(count[function]))
    given = {
        name: draw(st.integers(0, 1) if name == "mode" else st.integers(0, 2))
        for name in SETTINGS[function]
        if draw(st.booleans())
    }
    nested = function == "scale" and draw(st.booleans())
    return Node(function, inputs, draw(st.integers(0, 1)), given, nested)


def _edit_setting(where: tuple[int, str], value: int | None) -> EditSetting:
    return EditSetting(*where, value % 2 if where[1] == "mode" and value else value)


def _edit_default(name: str, value: int) -> EditDefault:
    return EditDefault(name, value % 2 if name == "mode" else value)
