"""The caching contract as a model that is short enough to be seen to be right.

A :class:`World` is what an author has written: a DAG of calls, settings, input files and code, all
as small numbers. What a step makes is a pure function of its :class:`Identity`: which function,
the code that ran, the settings that count, the *content* of its inputs. So a
:class:`Model`, which only knows the identities that were made and whether their bytes are still
there, says exactly which steps a run must execute.

Nothing here is shared with ``pipeline/``: no keys, no digests, no manifests.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, cast

PARTS = ("low", "high")
BASE = 3
LONGEST = 6
FOLDER = 1
"""The input with this number is a folder; the others are files."""
BEFORE = 0
"""What an added field or parameter implicitly was."""

REACHED = {
    "load": ("load", "helper", "decorator", "decorated"),
    "scale": ("scale", "method", "enum"),
    "merge": ("merge", "constant", "table"),
    "fold": (),  # declares a version
}
"""The units of code that bear on what each step function makes."""
ALWAYS = ("decorator", "table", "enum")
"""Units of code that run when their module is imported, so they count for every step."""
MODULES = ("lab_config", "lab_helpers", "lab_constants", "lab_files", "lab_steps")
SETTINGS = {
    "load": ("start",),
    "scale": ("factor", "mode", "gain", "extra"),
    "merge": ("shift", "merge bonus"),
    "fold": ("fold bonus",),
}
DEFAULTS = ("start", "factor", "mode", "gain", "shift")
ADDED = ("extra", "merge bonus", "fold bonus")
HASHED = ("load", "scale", "merge")

Values = tuple[int, ...]
MadeBy = tuple[tuple[str, int | None], ...]


class Literal:
    """A dataclass that is shown as one would write it: without the fields left to their default."""

    def __repr__(self) -> str:
        said = [
            f"{field.name}={value!r}"
            for field in fields(cast(Any, self))
            if (value := getattr(self, field.name)) != field.default and value != {}
        ]
        return f"{type(self).__name__}({', '.join(said)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # in a counterexample


@dataclass(frozen=True, repr=False)
class Node(Literal):
    """A call of a step function.

    Attributes:
        inputs: number of an earlier node, and which part of it (``None``: all).
        source: number of the input file, for ``load``.
        given: settings that the call names; others have the default that the code gives them.
        nested: whether the config of ``scale`` holds another dataclass.
    """

    function: str
    inputs: tuple[tuple[int, str | None], ...] = ()
    source: int = 0
    given: Mapping[str, int] = field(default_factory=dict)
    nested: bool = False


@dataclass(frozen=True)
class Content:
    """What an artifact holds: a list of numbers in each of its parts."""

    low: Values
    high: Values

    def seen(self, part: str | None) -> tuple[Any, ...]:
        """As an input: a part is known by what is in it, and is not the whole."""
        if part is None:
            return "whole", self.high, self.low
        return "part", getattr(self, part)


@dataclass(frozen=True)
class Identity:
    """All by which a result is known.

    Attributes:
        meaning: of the code, as far as it bears on the result.
        made_by: the code that ran.
    """

    function: str
    meaning: tuple[int, ...]
    made_by: MadeBy
    settings: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[Any, ...], ...]
    source: tuple[Any, ...] = ()

    @cached_property
    def content(self) -> Content:
        """What the step makes."""
        total = sum(self.meaning) + sum(n for name, n in self.settings if name != "nested")
        values = list(self.source[1:])
        for position, (_, *parts) in enumerate(self.inputs):
            weight = 1 + position if self.function in ("merge", "fold") else 1
            values += [weight * value for part in parts for value in part]
        made = [(value + total) % BASE for value in values[:LONGEST]]
        low = tuple(value for value in made if value == 0)
        return Content(low, tuple(value for value in made if value != 0))

    @property
    def key(self) -> tuple[Any, ...]:
        """All but code."""
        version = self.made_by if self.function == "fold" else ()
        return self.function, version, self.settings, self.inputs, self.source


@dataclass(frozen=True, repr=False)
class World(Literal):
    """What an author has written. Every part can be edited, see ``contract_edits``.

    Attributes:
        code: the meaning of each unit of code.
        refactored: how the body of each function is phrased, which changes no meaning.
        phrasing: comments, docstrings and layout of each module.
        defaults: of parameters and dataclass fields.
        added: defaults of the fields and parameters that the code has got since.
        version: what ``fold`` declares.
        details: execution details; they bear on nothing.
        moved: how often the input files were moved.
    """

    nodes: tuple[Node, ...]
    roots: tuple[int, ...]
    files: tuple[Values, ...] = ((0, 1, 2), (1, 1, 2))
    code: Mapping[str, int] = field(default_factory=dict)
    refactored: Mapping[str, int] = field(default_factory=dict)
    phrasing: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    added: Mapping[str, int] = field(default_factory=dict)
    version: int = 1
    details: int = 0
    moved: int = 0

    def identity(self, number: int) -> Identity:
        node = self.nodes[number]
        return Identity(
            node.function,
            tuple(self.code.get(unit, 0) for unit in _units(node)) or (self.version,),
            self.made_by(node),
            tuple((name, value) for name, value in self.effective(node)),
            tuple(self.identity(upstream).content.seen(part) for upstream, part in node.inputs),
            self._source(node),
        )

    def made_by(self, node: Node) -> MadeBy:
        """The code that runs, or the version that stands for it."""
        if node.function == "fold":
            return (("version", self.version),)
        own = {"load": ("start",), "scale": (), "merge": ("shift", "merge bonus")}
        units = sorted({*_units(node), *ALWAYS})
        return (
            *((unit, self.code.get(unit, 0)) for unit in units),
            *((name, self.defaults.get(name, 0)) for name in ("factor", "mode", "gain")),
            *((name, self._default(name)) for name in ("extra", *own[node.function])),
            ("refactored", self.refactored.get(node.function, 0)),
        )

    def _default(self, name: str) -> int | None:
        return self.added.get(name) if name in ADDED else self.defaults.get(name, 0)

    @property
    def all_code(self) -> tuple[Any, ...]:
        """All that is written, but for how it is phrased."""
        changed = [
            sorted((name, value) for name, value in of.items() if value)
            for of in (self.code, self.refactored, self.defaults)
        ]
        return tuple(map(tuple, changed)), tuple(sorted(self.added.items())), self.version

    def effective(self, node: Node) -> Iterator[tuple[str, int]]:
        """The settings that count: with their defaults, or as they were before they existed."""
        for name in SETTINGS[node.function]:
            if name == "gain" and not node.nested:
                continue
            if name in ADDED and name not in self.added:
                yield name, BEFORE
            else:
                default = {**self.defaults, **self.added}.get(name, 0)
                yield name, node.given.get(name, default)
        if node.function == "scale":
            yield "nested", int(node.nested)

    def _source(self, node: Node) -> tuple[Any, ...]:
        if node.function != "load":
            return ()
        kind = "folder" if node.source == FOLDER else "file"
        return (kind, *self.files[node.source])

    def revised(self, **changes: Any) -> "World":
        return replace(self, **changes)


def _units(node: Node) -> tuple[str, ...]:
    return REACHED[node.function] + ("inner method",) * node.nested


@dataclass
class Model:
    """What was made, what of it is left, and which code was said to be equivalent.

    Attributes:
        damaged: for each identity that was made, oldest first, the parts in which other bytes lie.
        gone: identities without data, or whose data is known to be of no use.
        accepted: functions, each with code by which artifacts were made, and all code that there
            was when somebody said that it makes the same.
    """

    damaged: dict[Identity, set[str]] = field(default_factory=dict)
    gone: set[Identity] = field(default_factory=set)
    accepted: set[tuple[str, MadeBy, tuple[Any, ...]]] = field(default_factory=set)

    def copy(self) -> "Model":
        damaged = {identity: set(parts) for identity, parts in self.damaged.items()}
        return Model(damaged, set(self.gone), set(self.accepted))

    def commit(self, identity: Identity) -> None:
        self.damaged.pop(identity, None)
        self.damaged[identity] = set()
        self.gone.discard(identity)

    def artifact(self, world: World, identity: Identity) -> Identity | None:
        """The newest artifact that stands for an identity."""
        for made in reversed(self.damaged):
            is_accepted = (made.function, made.made_by, world.all_code) in self.accepted
            if made.key == identity.key and (made.made_by == identity.made_by or is_accepted):
                return made
        return None

    def run(self, world: World, forced: Collection[str] = ()) -> list[Identity]:
        """What a run executes, each at most once; the model is then as after it."""
        ran: list[Identity] = []

        def know(number: int) -> Identity:
            """Find out what a node's artifact is; its bytes are not needed for that."""
            for upstream, _ in world.nodes[number].inputs:
                know(upstream)
            identity = world.identity(number)
            must = identity.function in forced and identity not in ran
            if must or self.artifact(world, identity) is None:
                make(number, identity)
            return identity

        def have(number: int, parts: Collection[str]) -> None:
            identity = know(number)
            if not self._is_intact(self.artifact(world, identity), parts):
                make(number, identity)

        def make(number: int, identity: Identity) -> None:
            for upstream, part in world.nodes[number].inputs:
                have(upstream, PARTS if part is None else (part,))
            if identity not in ran:  # an input may have turned out to be the same artifact
                ran.append(identity)
                self.commit(identity)

        for root in world.roots:
            have(root, ())
        return ran

    def _is_intact(self, identity: Identity | None, parts: Collection[str]) -> bool:
        """Whether the data is there, and these parts of it, which are read, are not damaged."""
        if identity is None or identity in self.gone:
            return False
        return not self.damaged[identity].intersection(parts)
