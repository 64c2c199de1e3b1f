"""What tells steps of one name apart: the settings in which they differ, as in ``beta=0.05``.

Where steps have equal settings, what their inputs differ in tells them apart: the evaluations of a
sweep are called by the beta of the training they look at. It is the same for steps that are planned
and for artifacts that exist: see :func:`of_steps` and :func:`of_manifests`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.canonical import Json
from pipeline.manifest import Manifest
from pipeline.step import Step
from pipeline.why import leaves

_MOST_SETTINGS = 3
_LONGEST_VALUE = 24
_SHOWN_DIGITS = 8


@dataclass(frozen=True)
class Node:
    """A step as far as its name goes.

    Attributes:
        settings: every setting by its path, as in ``config.beta``.
        inputs: which node each argument is, by its path.
    """

    step: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]


def of_steps(steps: Iterable[Step]) -> dict[str, Node]:
    """Nodes by fingerprint, in the order of ``steps``."""
    return {
        step.fingerprint: _node(step.name, step.recipe(lambda i: i.step.fingerprint))
        for step in steps
    }


def of_manifests(manifests: Iterable[Manifest]) -> dict[str, Node]:
    """Nodes by attempt, in the order of ``manifests``; inputs by the attempts among them."""
    manifests = list(manifests)
    attempts = {(made.step, made.key): made.attempt for made in manifests}
    nodes = {}
    for made in manifests:
        inputs = {i.digest: attempts.get((i.step, i.key), i.digest) for i in made.inputs}
        nodes[made.attempt] = _node(made.step, made.recipe, inputs)
    return nodes


def _node(step: str, recipe: Json, inputs: Mapping[str, str] | None = None) -> Node:
    arguments = recipe.get("arguments", {}) if isinstance(recipe, dict) else {}
    found = {path: value for path, value in leaves(arguments) if path}
    given = {p.removesuffix(".$input"): str(v) for p, v in found.items() if p.endswith("$input")}
    settings = {path: v for path, v in found.items() if not path.endswith("$input")}
    return Node(step, settings, {path: (inputs or {}).get(at, at) for path, at in given.items()})


def names(nodes: Mapping[str, Node]) -> dict[str, str]:
    """What tells each node apart from the others of its step, in as few settings as will do; empty
    for the only one of a step.

    Args:
        nodes: inputs before what uses them.
    """
    groups: dict[str, list[str]] = {}
    for name, node in nodes.items():
        groups.setdefault(node.step, []).append(name)
    found: dict[str, str] = {}
    for group in groups.values():
        found |= _names_of_group(group, nodes)
    return {name: found[name] for name in nodes}


def parameters(nodes: Mapping[str, Node], chosen: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The settings in which nodes differ, their own and those of all they were made from.

    Returns:
        By the name of each setting, its value for every node that has one.
    """
    return _shortened(_different_above(nodes, chosen))


def _names_of_group(group: Sequence[str], nodes: Mapping[str, Node]) -> dict[str, str]:
    if len(group) == 1:
        return dict.fromkeys(group, "")
    own = _different({name: nodes[name].settings for name in group})
    above = _different_above(nodes, group)
    candidates = own | {path: of for path, of in above.items() if of not in own.values()}
    candidates |= _different({name: _input_steps(nodes, name) for name in group})
    chosen = _shortened(_fewest(candidates, group))
    labels = {name: _label(chosen, name) for name in group}
    times, seen = Counter(labels.values()), Counter[str]()
    for name, label in labels.items():
        if times[label] > 1:
            seen[label] += 1
            labels[name] = f"{label} #{seen[label]}".strip()
    return labels


def _fewest(
    candidates: Mapping[str, dict[str, Any]], group: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Settings, each the one that tells the most apart that are alike so far."""
    chosen: dict[str, dict[str, Any]] = {}
    kinds = 1
    while kinds < len(group) and len(chosen) < _MOST_SETTINGS:
        apart = {
            path: len({tuple(_text_in(c, name) for c in (*chosen.values(), of)) for name in group})
            for path, of in candidates.items()
        }
        best = max(apart, key=lambda path: apart[path], default=None)
        if best is None or apart[best] <= kinds:
            break
        chosen[best], kinds = candidates[best], apart[best]
    return {path: of for path, of in candidates.items() if path in chosen}  # own settings first


def _label(chosen: Mapping[str, Mapping[str, Any]], name: str) -> str:
    texts = {setting: _text_in(of, name) for setting, of in chosen.items()}
    return " ".join(f"{setting}={text}" for setting, text in texts.items() if text)


def _text_in(values: Mapping[str, Any], name: str) -> str:
    return "" if values.get(name) is None else value_text(values[name])


def _input_steps(nodes: Mapping[str, Node], name: str) -> dict[str, str]:
    """By argument, the name of the step whose output a node is given."""
    return {path: nodes[at].step for path, at in nodes[name].inputs.items() if at in nodes}


def _ancestry(nodes: Mapping[str, Node], name: str) -> dict[str, Any]:
    """Every setting of a node and of all it was made from; one that two steps of a name have
    different values of is left out."""
    found: dict[str, Any] = {}
    pending, seen = [name], {name}
    ambiguous: set[str] = set()
    while pending:
        node = nodes[pending.pop()]
        for path, value in node.settings.items():
            place = f"{node.step}.{path}"
            if found.setdefault(place, value) != value:
                ambiguous.add(place)
        above = [n for n in node.inputs.values() if n in nodes and n not in seen]
        seen.update(above)
        pending += above
    return {place: value for place, value in found.items() if place not in ambiguous}


def _different(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By path, the values of what is not the same for all; of paths whose values always agree, the
    first."""
    found: dict[str, dict[str, Any]] = {}
    vectors = set()
    for path in dict.fromkeys(path for known in settings.values() for path in known):
        values = {name: known[path] for name, known in settings.items() if path in known}
        vector = tuple(_comparable(values.get(name)) for name in settings)
        if len(set(vector)) > 1 and vector not in vectors:
            vectors.add(vector)
            found[path] = values
    return found


def _different_above(nodes: Mapping[str, Node], chosen: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The same of nodes with all they were made from. What only some were made from tells nothing
    by being there; and of settings that agree for all that have both, the one fewer have counts:
    it is where the difference comes from."""
    different = _different({name: _ancestry(nodes, name) for name in chosen})
    telling = {p: of for p, of in different.items() if len(set(map(_comparable, of.values()))) > 1}
    return {
        path: of
        for path, of in telling.items()
        if not any(other is not of and _follows(of, other) for other in telling.values())
    }


def _follows(values: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether ``other`` says the same of fewer nodes."""
    return other.keys() < values.keys() and all(
        _comparable(values[name]) == _comparable(value) for name, value in other.items()
    )


def _comparable(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


def _shortened(differing: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same under the ends of their paths, where these do not end alike."""
    ends = Counter(_end(path) for path in differing)
    return {_end(path) if ends[_end(path)] == 1 else path: of for path, of in differing.items()}


def _end(path: str) -> str:
    """What to call a setting; ``loss type`` says which of several dataclasses ``loss`` is."""
    return path.removesuffix(" type").rpartition(".")[2]


def value_text(value: Any) -> str:
    """A setting's value for people: short, and on one line."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    if len(text) in (32, 64) and set(text) <= set("0123456789abcdef"):
        return text[:_SHOWN_DIGITS]  # a digest
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
