"""What tells steps of one name apart: the settings in which they differ, as in ``beta=0.05``.

Where steps have equal settings, what their inputs differ in tells them apart: the evaluations of a
sweep are called by the beta of the training they look at. It is the same for steps that are planned
and for artifacts that exist: see :func:`of_steps` and :func:`of_manifests`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pipeline.dag.canonical import Json
from pipeline.dag.settings import leaves
from pipeline.dag.step import Input, Step
from pipeline.store.manifest import Manifest

T = TypeVar("T")
Column = dict[str, Any]
"""Of one setting, the value for every node that has one."""

_AMBIGUOUS = object()
_MOST_SETTINGS = 3
_LONGEST_VALUE = 24
_SHOWN_DIGITS = 8


@dataclass(frozen=True)
class Node:
    """A step as far as its name goes.

    Attributes:
        settings: every setting by its path, as in ``config.beta``; of an argument that is a part
            of an artifact, that part.
        inputs: which node each argument is, by its path.
    """

    step: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]


def of_steps(steps: Iterable[Step]) -> dict[str, Node]:
    """Nodes by fingerprint, in the order of ``steps``."""
    nodes = {}
    for step in steps:
        given = {_place(i): _Given(i.step.fingerprint, i.part) for i in step.inputs}
        nodes[step.fingerprint] = _node(step.name, step.recipe(_place), given)
    return nodes


def _place(reference: Input) -> str:
    return f"{reference.step.fingerprint}/{reference.part or ''}"


def of_manifests(manifests: Iterable[Manifest]) -> dict[str, Node]:
    """Nodes by attempt, in the order of ``manifests``; inputs by the attempts among them."""
    manifests = list(manifests)
    attempts = {(made.step, made.key): made.attempt for made in manifests}
    nodes = {}
    for made in manifests:
        given = {
            i.digest: _Given(attempts.get((i.step, i.key), i.digest), i.part) for i in made.inputs
        }
        nodes[made.attempt] = _node(made.step, made.recipe, given)
    return nodes


class _Given(NamedTuple):
    """What an argument is: a node, or a part of one."""

    node: str
    part: str | None


def _node(step: str, recipe: Json, given: Mapping[str, _Given]) -> Node:
    """
    Args:
        given: what stands in the recipe for each input.
    """
    arguments = recipe.get("arguments", {}) if isinstance(recipe, dict) else {}
    found = {path: value for path, value in leaves(arguments) if path}
    places = {p.removesuffix(".$input"): str(v) for p, v in found.items() if p.endswith("$input")}
    inputs = {path: given.get(place, _Given(place, None)) for path, place in places.items()}
    settings = {path: v for path, v in found.items() if not path.endswith("$input")}
    parts = {path: of.part for path, of in inputs.items() if of.part is not None}
    return Node(step, settings | parts, {path: of.node for path, of in inputs.items()})


def names(nodes: Mapping[str, Node]) -> dict[str, str]:
    """What tells each node apart from the others of its step, in as few settings as will do; empty
    for the only one of a step."""
    labels = {name: label(settings) for name, settings in told_apart(nodes).items()}
    return numbered(labels, nodes)


def label(settings: Mapping[str, str]) -> str:
    """Settings as a name, as in ``beta=0.1 seed=3``."""
    return " ".join(f"{setting}={value}" for setting, value in settings.items())


def told_apart(nodes: Mapping[str, Node]) -> dict[str, Mapping[str, str]]:
    """The settings that tell each node apart from the others of its step, with their values; none
    for the only one of a step, nor for those that no few settings tell apart."""
    several = [group for group in groups(nodes) if len(group) > 1]
    histories = _histories(nodes) if several else {}
    found: dict[str, Mapping[str, str]] = {name: {} for name in nodes}
    for group in several:
        chosen = _settings_of_group(group, nodes, histories)
        found |= {n: {path: of[n] for path, of in chosen.items() if n in of} for n in group}
    return found


def numbered(labels: Mapping[str, str], nodes: Mapping[str, Node]) -> dict[str, str]:
    """The labels, with a number where several nodes of a step have one."""
    found = dict(labels)
    for group in groups(nodes):
        times, seen = Counter(labels[name] for name in group), Counter[str]()
        for name in group if len(group) > 1 else ():
            if times[labels[name]] > 1:
                seen[labels[name]] += 1
                found[name] = f"{labels[name]} #{seen[labels[name]]}".strip()
    return found


def groups(nodes: Mapping[str, Node]) -> list[list[str]]:
    """The nodes of each step."""
    found: dict[str, list[str]] = {}
    for name, node in nodes.items():
        found.setdefault(node.step, []).append(name)
    return list(found.values())


def parameters(nodes: Mapping[str, Node], chosen: Sequence[str]) -> dict[str, Column]:
    """The settings in which nodes differ, their own and those of all they were made from.

    Returns:
        By the name of each setting, its value for every node that has one.
    """
    return _shortened(_different_above(_histories(nodes), chosen))


def _settings_of_group(
    group: Sequence[str], nodes: Mapping[str, Node], histories: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, str]]:
    """The fewest settings that tell the nodes of a step apart; the text of each, by node."""
    own = _different(_columns({name: nodes[name].settings for name in group}), len(group))
    above = _different_above(histories, group)
    candidates = own | {path: of for path, of in above.items() if of not in own.values()}
    given = _columns({name: _input_steps(nodes, name) for name in group})
    return _shortened(_fewest(_texts(candidates | _different(given, len(group))), group))


def _input_steps(nodes: Mapping[str, Node], name: str) -> dict[str, str]:
    """By argument, the name of the step whose output a node is given."""
    return {path: nodes[at].step for path, at in nodes[name].inputs.items() if at in nodes}


# --- the fewest settings that tell nodes apart ---------------------------------------------------


def _texts(columns: Mapping[str, Column]) -> dict[str, dict[str, str]]:
    """What is shown of each value; what would be empty is left out."""
    return {
        path: {n: text for n, v in of.items() if v is not None and (text := value_text(v))}
        for path, of in columns.items()
    }


def _fewest(
    candidates: Mapping[str, dict[str, str]], group: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Settings, each the one that tells the most apart that are alike so far."""
    chosen: set[str] = set()
    alike = dict.fromkeys(group, 0)  # by node, the number of those that it cannot be told from
    while len(chosen) < _MOST_SETTINGS:
        sizes = Counter(alike.values())
        kinds = {path: _kinds(of, alike, sizes) for path, of in candidates.items()}
        best = max(kinds, key=lambda path: kinds[path], default=None)
        if best is None or kinds[best] <= len(sizes):
            break
        chosen.add(best)
        alike = _split(alike, candidates[best])
    return {path: of for path, of in candidates.items() if path in chosen}  # own settings first


def _kinds(texts: Mapping[str, str], alike: Mapping[str, int], sizes: Mapping[int, int]) -> int:
    """How many kinds of nodes there would be, if these texts were told too."""
    told = {(alike[name], text) for name, text in texts.items()}
    covered = Counter(alike[name] for name in texts)
    return len(told) + len(sizes) - sum(covered[kind] == sizes[kind] for kind in covered)


def _split(alike: Mapping[str, int], texts: Mapping[str, str]) -> dict[str, int]:
    numbers: dict[tuple[int, str], int] = {}
    return {
        name: numbers.setdefault((kind, texts.get(name, "")), len(numbers))
        for name, kind in alike.items()
    }


# --- what nodes were made from -------------------------------------------------------------------


def _histories(nodes: Mapping[str, Node]) -> dict[str, Mapping[str, Any]]:
    """For each node, the settings of it and of all it was made from, by step and path; those alone
    that are not the same everywhere. What two steps of a name differ in is ``_AMBIGUOUS`` there.

    Each node adds its own to what is known of its inputs: the cost is that of the edges, however
    deep the DAG is.
    """
    varying = _varying(nodes)
    found: dict[str, Mapping[str, Any]] = {}
    for name in _inputs_first(nodes):
        node = nodes[name]
        places = ((f"{node.step}.{path}", value) for path, value in node.settings.items())
        own = {place: value for place, value in places if place in varying}
        above = (found[i] for i in reversed([*node.inputs.values()]) if i in found)
        found[name] = _merged([own, *above])
    return found


def _varying(nodes: Mapping[str, Node]) -> set[str]:
    """The settings, by step and path, that some nodes have different values of."""
    first: dict[str, tuple[str, str]] = {}
    varying: set[str] = set()
    for node in nodes.values():
        for path, value in node.settings.items():
            place = f"{node.step}.{path}"
            kind = _comparable(value)
            if first.setdefault(place, kind) != kind:
                varying.add(place)
    return varying


def _inputs_first(nodes: Mapping[str, Node]) -> Iterable[str]:
    """The names in an order in which inputs come before what uses them."""
    order: dict[str, None] = {}
    pending, seen = [*nodes][::-1], set[str]()
    while pending:
        name = pending[-1]
        if name in seen:
            order.setdefault(pending.pop())
            continue
        seen.add(name)
        pending += [i for i in nodes[name].inputs.values() if i in nodes and i not in seen]
    return order


def _merged(parts: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """All settings; nodes that have the same share one mapping."""
    different = [*{id(part): part for part in parts if part}.values()]
    if len(different) < 2:
        return different[0] if different else {}
    found: dict[str, Any] = {}
    for part in different:
        for place, value in part.items():
            if found.setdefault(place, value) != value:
                found[place] = _AMBIGUOUS
    return found


def _different_above(
    histories: Mapping[str, Mapping[str, Any]], chosen: Sequence[str]
) -> dict[str, Column]:
    """In what nodes differ with all they were made from. What only some were made from tells
    nothing by being there; and of settings that agree for all that have both, the one fewer have
    counts: it is where the difference comes from."""
    columns = _columns({name: histories[name] for name in chosen})
    telling = {p: of for p, of in columns.items() if len(set(map(_comparable, of.values()))) > 1}
    different = _different(telling, len(chosen))
    sources: list[Column] = []
    for of in sorted(different.values(), key=len):
        if not any(_follows(of, source) for source in sources):
            sources.append(of)
    kept = set(map(id, sources))
    return {path: of for path, of in different.items() if id(of) in kept}


def _follows(values: Column, source: Column) -> bool:
    """Whether ``source`` says the same of fewer nodes."""
    return len(source) < len(values) and all(
        name in values and _comparable(values[name]) == _comparable(value)
        for name, value in source.items()
    )


# --- values by node ------------------------------------------------------------------------------


def _columns(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Column]:
    """What is known of each node, turned: by setting, the value for every node that has one."""
    columns: dict[str, Column] = {}
    for name, row in rows.items():
        for path, value in row.items():
            if value is not _AMBIGUOUS:
                columns.setdefault(path, {})[name] = value
    return columns


def _different(columns: Mapping[str, Column], nodes: int) -> dict[str, Column]:
    """Those that are not the same for all of so many nodes, where to have none is to have ``None``;
    of those whose values always agree, the first."""
    found: dict[tuple[Any, ...], tuple[str, Column]] = {}
    for path, of in columns.items():
        values = tuple((name, _comparable(v)) for name, v in of.items() if v is not None)
        if len({kind for _, kind in values}) > 1 or 0 < len(values) < nodes:
            found.setdefault(values, (path, of))
    return dict(found.values())


def _comparable(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


def _shortened(differing: Mapping[str, T]) -> dict[str, T]:
    """The same under the ends of their paths, where these do not end alike."""
    ends = Counter(_end(path) for path in differing)
    return {_end(path) if ends[_end(path)] == 1 else path: of for path, of in differing.items()}


def _end(path: str) -> str:
    """What to call a setting: the end of its path, from the list on in which it lies. ``loss type``
    says which of several dataclasses ``loss`` is."""
    names = path.removesuffix(" type").split(".")
    listed = (at for at, name in enumerate(names) if "[" in name)
    return ".".join(names[next(listed, len(names) - 1) :])


def value_text(value: Any) -> str:
    """A setting's value for people: short, and on one line."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    if len(text) in (32, 64) and set(text) <= set("0123456789abcdef"):
        return text[:_SHOWN_DIGITS]  # a digest
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
