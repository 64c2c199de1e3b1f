"""Variants: steps of one name, and the settings that distinguish them, such as ``beta=0.05``.

If steps have equal settings, the settings of their ancestors distinguish them: the evaluations of a
sweep are named after the beta of the training whose model they evaluate. This works alike for
planned steps (:func:`of_steps`) and for existing artifacts (:func:`of_manifests`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any, NamedTuple, TypeVar

from pipeline.base.redaction import without_secrets
from pipeline.base.text import cut, visible
from pipeline.dag.canonical import Json
from pipeline.dag.grid import shown_names
from pipeline.dag.inputs import source_identity
from pipeline.dag.settings import leaves
from pipeline.dag.step import Input, Step
from pipeline.store.manifest import Manifest

T = TypeVar("T")
Column = dict[str, Any]
"""The values of one setting, by node; nodes without the setting are left out."""

_AMBIGUOUS = object()
_MOST_SETTINGS = 3
_LONGEST_VALUE = 24
_SHOWN_DIGITS = 8
_TYPE = " type"


@dataclass(frozen=True)
class Node:
    """A step with the properties that its name depends on.

    Attributes:
        settings: every setting by its path, such as ``config.beta``. An argument that is a part of
            an artifact counts as a setting, with the part as its value.
        inputs: the node that each argument refers to, by the argument's path.
    """

    step: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]


def of_steps(steps: Iterable[Step]) -> dict[str, Node]:
    """Nodes by fingerprint, in the order of ``steps``. In place of the digest of a file's content
    they have the last part of its path."""
    steps = list(steps)
    files = {source_identity(f.url): f.url.rstrip("/") for step in steps for f in step.files}
    nodes = {}
    for step in steps:
        given = {_place(i): _Given(i.step.fingerprint, i.part) for i in step.inputs}
        node = _node(step.name, step.recipe(_place), given)
        settings = dict(_with_name(*setting, files) for setting in node.settings.items())
        nodes[step.fingerprint] = replace(node, settings=settings)
    return nodes


def _with_name(path: str, value: Any, files: Mapping[Any, str]) -> tuple[str, Any]:
    if isinstance(value, str) and path.endswith(".content") and value in files:
        return path.removesuffix(".content"), files[value].rpartition("/")[2]
    return path, value


def _place(reference: Input) -> str:
    return f"{reference.step.fingerprint}/{reference.part or ''}"


def of_manifests(manifests: Iterable[Manifest]) -> dict[str, Node]:
    """Nodes by attempt, in the order of ``manifests``; inputs are attempts of ``manifests``."""
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
    """The value of an argument: a node, or a part of a node."""

    node: str
    part: str | None


def _node(step: str, recipe: Json, given: Mapping[str, _Given]) -> Node:
    """
    Args:
        given: the node behind each input, by the text that stands for the input in the recipe.
    """
    settings, places = settings_and_inputs(recipe)
    inputs = {path: given.get(place, _Given(place, None)) for path, place in places.items()}
    parts = {path: of.part for path, of in inputs.items() if of.part is not None}
    return Node(step, settings | parts, {path: of.node for path, of in inputs.items()})


def settings_of(recipe: Json) -> dict[str, Any]:
    return settings_and_inputs(recipe)[0]


def settings_and_inputs(recipe: Json) -> tuple[dict[str, Any], dict[str, str]]:
    """Every setting of a recipe, and the text that stands for each input, by path."""
    arguments = recipe.get("arguments", {}) if isinstance(recipe, dict) else {}
    found = {path: value for path, value in leaves(arguments) if path}
    inputs = {p.removesuffix(".$input"): str(v) for p, v in found.items() if p.endswith("$input")}
    return {p: v for p, v in found.items() if not p.endswith("$input")}, inputs


def names(nodes: Mapping[str, Node]) -> dict[str, str]:
    """A label for each node that distinguishes it from the others of its step, with as few settings
    as possible; empty if it is the only node of its step."""
    labels = {name: label(settings) for name, settings in distinguishing_settings(nodes).items()}
    return numbered(labels, nodes)


def label(settings: Mapping[str, str]) -> str:
    """Settings as a label, such as ``beta=0.1 seed=3``."""
    return " ".join(f"{setting}={value}" for setting, value in settings.items())


def typed_apart(jobs: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The settings that differ between jobs or runs, under short names, with the values of each.

    Args:
        jobs: the words of each as typed; those like ``SETTING=VALUE`` count.
    """
    given = [dict(map(_pair, filter(_is_setting, without_secrets(typed)))) for typed in jobs]
    paths = dict.fromkeys(path for of_job in given for path in of_job)
    varied = [path for path in paths if len({of_job.get(path) for of_job in given}) > 1]
    shown = shown_names(varied)
    return [{shown[p]: value_text(of_job[p]) for p in varied if p in of_job} for of_job in given]


def _is_setting(word: str) -> bool:
    return not word.startswith("-") and ("=" in word or word.startswith("~"))


def _pair(typed: str) -> tuple[str, str]:
    path, _, value = typed.lstrip("+").partition("=")
    return path.replace("/", "."), value


def distinguishing_settings(nodes: Mapping[str, Node]) -> dict[str, Mapping[str, str]]:
    """The settings that distinguish each node from the others of its step, with their values. A
    node has none if it is the only one of its step, or if a few settings cannot distinguish it."""
    several = [group for group in groups(nodes) if len(group) > 1]
    histories = _histories(nodes) if several else {}
    found: dict[str, Mapping[str, str]] = {name: {} for name in nodes}
    for group in several:
        chosen = _settings_of_group(group, nodes, histories)
        found |= {n: {path: of[n] for path, of in chosen.items() if n in of} for n in group}
    return found


def numbered(labels: Mapping[str, str], nodes: Mapping[str, Node]) -> dict[str, str]:
    """The labels, with a number where several nodes of a step share a label."""
    found = dict(labels)
    for group in groups(nodes):
        times, seen = Counter(labels[name] for name in group), Counter[str]()
        for name in group if len(group) > 1 else ():
            if times[labels[name]] > 1:
                seen[labels[name]] += 1
                found[name] = f"{labels[name]} #{seen[labels[name]]}".strip()
    return found


def groups(nodes: Mapping[str, Node]) -> list[list[str]]:
    """The nodes of each step, as one group for each."""
    found: dict[str, list[str]] = {}
    for name, node in nodes.items():
        found.setdefault(node.step, []).append(name)
    return list(found.values())


def parameters(nodes: Mapping[str, Node], chosen: Sequence[str]) -> dict[str, Column]:
    """The settings in which nodes or their ancestors differ.

    Returns:
        The values of each setting by node, under the setting's shortened name.
    """
    return _shortened(_different_above(_histories(nodes), chosen))


def effective(nodes: Mapping[str, Node], chosen: Sequence[str]) -> dict[str, Column]:
    """The :func:`parameters` that vary by themselves. A field of a choice, such as the beta of a
    loss, does if it has two values for one choice; otherwise the choice stands for its fields. That
    an input is missing is no value of a setting either, as the start of the first of two trainings.
    """
    histories = _histories(_without_missing_inputs(nodes))
    columns = _columns({name: histories[name] for name in chosen})
    decided = {path for path in columns if _is_decided(path, columns)}
    kept = {
        name: {path: value for path, value in histories[name].items() if path not in decided}
        for name in chosen
    }
    return _shortened(_different_above(kept, chosen))


def is_seed(setting: str) -> bool:
    return _end(setting).endswith("seed")


def families(nodes: Mapping[str, Node], chosen: Iterable[str]) -> list[list[str]]:
    """The nodes that differ in seeds alone, of their own or of their ancestors, together; nodes
    without such a sibling are left out."""
    but_for_seeds, whole = _alike(nodes, is_seed), _alike(nodes, lambda _: False)
    found: dict[int, list[str]] = {}
    for name in dict.fromkeys(chosen):
        found.setdefault(but_for_seeds[name], []).append(name)
    several = (family for family in found.values() if len(family) > 1)
    return [family for family in several if len({whole[n] for n in family}) == len(family)]


def _alike(nodes: Mapping[str, Node], is_left_out: Callable[[str], bool]) -> dict[str, int]:
    """A number for each node: the same for nodes with equal settings and with equal ancestors."""
    known: dict[Any, int] = {}
    found: dict[str, int] = {}
    above = {n: [i for i in node.inputs.values() if i in nodes] for n, node in nodes.items()}
    for name in TopologicalSorter(above).static_order():
        node = nodes[name]
        settings = {p: _comparable(v) for p, v in node.settings.items() if not is_left_out(p)}
        inputs = {path: found.get(at, at) for path, at in node.inputs.items()}
        same = (node.step, frozenset(settings.items()), frozenset(inputs.items()))
        found[name] = known.setdefault(same, len(known))
    return found


def _without_missing_inputs(nodes: Mapping[str, Node]) -> dict[str, Node]:
    inputs = {(node.step, path) for node in nodes.values() for path in node.inputs}
    return {
        name: replace(
            node,
            settings={
                path: value
                for path, value in node.settings.items()
                if value is not None or (node.step, path) not in inputs
            },
        )
        for name, node in nodes.items()
    }


def _is_decided(path: str, columns: Mapping[str, Column]) -> bool:
    """Whether a choice above a setting decides its value: the class of a dataclass that has it."""
    parts = path.split(".")
    above = (f"{'.'.join(parts[:end])}{_TYPE}" for end in range(1, len(parts)))
    return any(place in columns and _decides(columns[place], columns[path]) for place in above)


def _decides(choice: Column, values: Column) -> bool:
    of_kind: dict[tuple[str, str], tuple[str, str]] = {}
    for name, value in values.items():
        known = _comparable(value)
        if of_kind.setdefault(_comparable(choice.get(name)), known) != known:
            return False
    return len(of_kind) > 1


def with_absent(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """The nodes with every setting of any node of their step; None where they lack it, as one of
    another loss, or of a list that is empty."""
    known: dict[str, dict[str, Any]] = {}
    for node in nodes.values():
        known.setdefault(node.step, {}).update(dict.fromkeys(node.settings))
    return {
        name: replace(node, settings={**known[node.step], **node.settings})
        for name, node in nodes.items()
    }


def _settings_of_group(
    group: Sequence[str], nodes: Mapping[str, Node], histories: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, str]]:
    """Few settings that distinguish the nodes of a step; the text of each value, by node. A setting
    is left out if those before it already distinguish all nodes that it distinguishes."""
    steps = {
        name: {path: nodes[at].step for path, at in nodes[name].inputs.items() if at in nodes}
        for name in group
    }
    candidates = _different(_columns({name: nodes[name].settings for name in group}), len(group))
    for further in (_different_above(histories, group), _different(_columns(steps), len(group))):
        candidates |= {path: of for path, of in further.items() if of not in candidates.values()}
    chosen: dict[str, dict[str, str]] = {}
    alike: list[tuple[str, ...]] = [()] * len(group)
    for path, of in candidates.items():
        if len(chosen) == _MOST_SETTINGS or len(set(alike)) == len(group):
            break
        texts = {n: text for n, v in of.items() if v is not None and (text := value_text(v))}
        split = [(*known, texts.get(n, "")) for known, n in zip(alike, group, strict=True)]
        if len(set(split)) > len(set(alike)):
            chosen[path], alike = texts, split
    return _shortened(chosen)


# --- what nodes were made from -------------------------------------------------------------------


def _histories(nodes: Mapping[str, Node]) -> dict[str, Mapping[str, Any]]:
    """The varying settings of each node and of all its ancestors, by step and path.

    Settings that have the same value everywhere are left out. A step's own settings hide those of
    steps of its name above it, such as its baseline or the round before. If two steps of one name
    above a node differ in a setting otherwise, its value is ``_AMBIGUOUS``.

    Each node merges its own settings into those of its inputs, so the cost is proportional to the
    number of edges, however deep the DAG is.
    """
    varying = _varying(nodes)
    found: dict[str, Mapping[str, Any]] = {}
    above = {n: [i for i in node.inputs.values() if i in nodes] for n, node in nodes.items()}
    for name in TopologicalSorter(above).static_order():
        node = nodes[name]
        places = ((f"{node.step}.{path}", value) for path, value in node.settings.items())
        own = {place: value for place, value in places if place in varying}
        given = _merged(found[i] for i in reversed(above[name]))
        found[name] = {**own, **given, **own} if own else given
    return found


def _varying(nodes: Mapping[str, Node]) -> set[str]:
    """The settings, by step and path, in which some nodes differ."""
    first: dict[str, tuple[str, str]] = {}
    varying: set[str] = set()
    for node in nodes.values():
        for path, value in node.settings.items():
            place = f"{node.step}.{path}"
            kind = _comparable(value)
            if first.setdefault(place, kind) != kind:
                varying.add(place)
    return varying


def _merged(parts: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """All settings of the parts; nodes with equal settings share one mapping, to save memory."""
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
    """The settings in which nodes or their ancestors differ.

    A setting must have two different values: it does not count that some nodes lack the ancestor
    that has it. Of settings that agree wherever both exist, one of two steps of a DAG that get the
    same value, only that which most nodes have is kept.
    """
    columns = _columns({name: histories[name] for name in chosen})
    varied = {p: of for p, of in columns.items() if len(set(map(_comparable, of.values()))) > 1}
    different = _different(varied, len(chosen))
    kept: dict[str, dict[int, Column]] = {name: {} for name in chosen}  # by node that has them
    for of in sorted(different.values(), key=len, reverse=True):
        if not any(_is_within(of, larger) for larger in kept[next(iter(of))].values()):
            for name in of:
                kept[name][id(of)] = of
    return {path: of for path, of in different.items() if id(of) in kept[next(iter(of))]}


def _is_within(values: Column, larger: Column) -> bool:
    return all(
        name in larger and _comparable(larger[name]) == _comparable(value)
        for name, value in values.items()
    )


# --- values by node ------------------------------------------------------------------------------


def _columns(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Column]:
    """The settings by node, transposed: the values of each setting, by node."""
    columns: dict[str, Column] = {}
    for name, row in rows.items():
        for path, value in row.items():
            if value is not _AMBIGUOUS:
                columns.setdefault(path, {})[name] = value
    return columns


def _different(columns: Mapping[str, Column], nodes: int) -> dict[str, Column]:
    """The settings that do not have the same value in all ``nodes`` nodes. A node without a setting
    counts as having ``None``. Of several settings with equal columns, only the first is kept."""
    found: dict[tuple[Any, ...], tuple[str, Column]] = {}
    for path, of in columns.items():
        values = tuple((name, _comparable(v)) for name, v in of.items() if v is not None)
        if len({kind for _, kind in values}) > 1 or 0 < len(values) < nodes:
            found.setdefault(values, (path, of))
    return dict(found.values())


def _comparable(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


def _shortened(differing: Mapping[str, T]) -> dict[str, T]:
    """The columns under the last part of their path, where that part is unique."""
    ends = Counter(_end(path) for path in differing)
    plain = Counter(path.removesuffix(_TYPE) for path in differing)

    def short(path: str) -> str:
        if ends[_end(path)] == 1:
            return _end(path)
        return path.removesuffix(_TYPE) if plain[path.removesuffix(_TYPE)] == 1 else path

    return {short(path): of for path, of in differing.items()}


def _end(path: str) -> str:
    """The short name of a setting: the last part of its path, or everything from the list item in
    which it lies. A path ``loss type`` holds the dataclass of ``loss``, and is called ``loss``."""
    names = path.removesuffix(_TYPE).split(".")
    listed = (at for at, name in enumerate(names) if "[" in name)
    return ".".join(names[next(listed, len(names) - 1) :])


def value_text(value: Any) -> str:
    """A setting's value as text: short, and on one line."""
    text = visible(str(value))
    if len(text) in (32, 64) and set(text) <= set("0123456789abcdef"):
        return text[:_SHOWN_DIGITS]  # a digest
    return cut(text, _LONGEST_VALUE)
